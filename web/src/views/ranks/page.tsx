import type { JSX } from "preact";
import type { JobAnswer, JobFinding } from "../../api/ranks_types";
import { milliseconds, percent, plural, words } from "../../base/format";
import { titleOf } from "../../base/sentences";
import { latestRank } from "../../model/heat";
import { ALL, partName, type JobStore } from "../../state/job";
import { ThemeButton } from "../theme_button";
import { HeatLegend, HeatMap } from "../heat_map";
import { RankPanel } from "./rank";
import { Groups, Ranks } from "./tables";

/** A whole job on one page: which rank is slow, since when, why, and what it costs. */
export function JobPage({ store }: { store: JobStore }): JSX.Element {
  const { job } = store;
  return (
    <>
      <header class="header">
        <h1 class="brand">stepscope</h1>
        <span class="trace-name">{job.name}</span>
        <span class="dim">
          {plural(job.ranks.length, "rank")} · {plural(job.steps.length, "step")}
        </span>
        <span class="grow" />
        <ThemeButton title="Light or dark" />
      </header>
      <main class="job">
        <Verdict store={store} />
        <Maps store={store} />
        <div class="job-sides">
          <RankPanel store={store} />
          <Imbalance job={job} />
        </div>
        <Ranks store={store} />
        <Groups store={store} />
        <Errors job={job} />
      </main>
    </>
  );
}

function Verdict({ store }: { store: JobStore }): JSX.Element {
  const { job } = store;
  return (
    <section class="job-verdict" aria-label="Verdict">
      {job.findings.length === 0 && <Sentence text={job.verdict} />}
      {job.findings.length > 0 && (
        <ol class="job-findings">
          {job.findings.map((one) => (
            <Finding key={one.sentence} store={store} finding={one} />
          ))}
        </ol>
      )}
      <p class="dim">
        A step takes {milliseconds(job.step_ms)}. Own work: {milliseconds(job.work_ms)} on the
        median rank, {milliseconds(job.slowest_ms)} on the slowest rank of each step.
      </p>
    </section>
  );
}

/** What is found stands out; why follows. */
function Sentence({ text }: { text: string }): JSX.Element {
  const title = titleOf(text);
  return (
    <>
      <span class="job-sentence">{title}</span>
      {text.slice(title.length)}
    </>
  );
}

function Finding({ store, finding }: { store: JobStore; finding: JobFinding }): JSX.Element {
  const shows = finding.stage in store.job.by_step ? finding.stage : ALL;
  const { rank, part } = store.view.value;
  const shown = finding.ranks.includes(rank ?? -1) && part === shows;
  return (
    <li>
      <button
        type="button"
        aria-pressed={shown}
        title="Choose its first rank, and show this stage step by step"
        onClick={() => store.set({ rank: finding.ranks[0] ?? null, part: shows })}
      >
        Show
      </button>{" "}
      <Sentence text={finding.sentence} /> <span class="dim">It {finding.cost}.</span>
    </li>
  );
}

function Maps({ store }: { store: JobStore }): JSX.Element {
  const { job, view, order, runs } = store;
  const name = (place: number): string => {
    const { rank, node } = job.ranks[place]!;
    return node ? `rank ${rank}, ${node}` : `rank ${rank}`;
  };
  const common = {
    order: order.value,
    runs: runs.value,
    marked: slowRanks(store),
    chosen: store.chosen,
    nameOf: name,
    whole: job.step_ms,
    sides: WORK,
    onChoose: (place: number) => store.set({ rank: job.ranks[place]!.rank }),
    onWalk: (by: number) => store.walk(by),
  };
  const steps = store.steps.value;
  const rowPx = Math.min(Math.max(Math.floor(STEPS_PX / steps.names.length), 3), 18);
  return (
    <section aria-label="Ranks by stage and by step" class="job-maps">
      <div class="pane-tools">
        <h2 class="pane-heading">Own work by stage</h2>
        <Choice
          label="Ranks by"
          value={view.value.by}
          among={store.orders}
          choose={(by) => store.set({ by })}
        />
        <span class="grow" />
        <HeatLegend most={store.stages.most} sides={WORK} />
      </div>
      <HeatMap {...common} label="Ranks by stage" heat={store.stages} rowPx={18} namedEvery={1} />
      <div class="pane-tools">
        <h2 class="pane-heading">Step by step</h2>
        <Choice
          label="Shown"
          value={view.value.part}
          among={Object.keys(job.by_step)}
          choose={(part) => store.set({ part })}
        />
        <span class="grow" />
        <HeatLegend most={steps.most} sides={WORK} />
      </div>
      <HeatMap
        {...common}
        label="Ranks by step"
        heat={steps}
        rowPx={rowPx}
        namedEvery={Math.ceil(16 / rowPx)}
      />
      {store.lateness.names.length > 0 && (
        <>
          <div class="pane-tools">
            <h2 class="pane-heading">Arrival at collectives</h2>
            <span class="dim">late ranks keep the others waiting</span>
            <Latest store={store} />
            <span class="grow" />
            <HeatLegend most={store.lateness.most} sides={ARRIVAL} />
          </div>
          <HeatMap
            {...common}
            label="Ranks by collective"
            heat={store.lateness}
            sides={ARRIVAL}
            rowPx={18}
            namedEvery={1}
          />
        </>
      )}
    </section>
  );
}

/** The rank that comes latest to all collectives together, where one stands out. */
function Latest({ store }: { store: JobStore }): JSX.Element | null {
  const { job } = store;
  const late = latestRank(job.lateness.map((one) => one.late_ms));
  if (!late || late.ms < LEAST_LATE * job.step_ms) return null;
  const { rank } = job.ranks[late.place]!;
  return (
    <span class="job-latest">
      <button type="button" class="chip" onClick={() => store.set({ rank })}>
        rank {rank}
      </button>{" "}
      arrives latest: {milliseconds(late.ms)} per step after the median rank
    </span>
  );
}

const LEAST_LATE = 0.02;
const STEPS_PX = 220;
const WORK = ["more", "less"] as const;
const ARRIVAL = ["later", "earlier"] as const;

/** The ranks of findings, by place; of slow links none, since they are of pairs. */
function slowRanks(store: JobStore): ReadonlySet<number> {
  const slow = store.job.findings.filter((one) => one.stage !== "communication");
  return new Set(slow.flatMap((one) => one.ranks.map((rank) => store.placeOf(rank))));
}

function Choice(props: {
  label: string;
  value: string;
  among: readonly string[];
  choose: (value: string) => void;
}): JSX.Element {
  return (
    <label>
      <span class="dim">{props.label}</span>{" "}
      <select
        aria-label={props.label}
        value={props.value}
        onChange={(event) => props.choose(event.currentTarget.value)}
      >
        {props.among.map((one) => (
          <option key={one} value={one}>
            {partName(one)}
          </option>
        ))}
      </select>
    </label>
  );
}

const PARTS: Record<string, string> = { worker: "rank", operation: "" };

function Imbalance({ job }: { job: JobAnswer }): JSX.Element | null {
  const { slowdown, whatifs, replayed_ms } = job;
  if (!slowdown) return null;
  const ratio = slowdown.balanced_ms ? slowdown.replayed_ms / slowdown.balanced_ms : 1;
  return (
    <section aria-label="Imbalance">
      <h2 class="pane-heading">Imbalance</h2>
      <p>
        In balance a step would take {milliseconds(slowdown.balanced_ms)}; as it is, it takes{" "}
        {milliseconds(slowdown.replayed_ms)} ({ratio.toFixed(2)}×).
        {slowdown.shares.length > 0 && " One part alone causes:"}
      </p>
      {slowdown.shares.length > 0 && (
        <ul class="job-shares">
          {slowdown.shares.map((one) => (
            <li key={`${one.part} ${one.which}`}>
              {PARTS[one.part] ?? words(one.part)} {partName(one.which)}{" "}
              <strong>{percent(one.share)}</strong>
            </li>
          ))}
        </ul>
      )}
      {Object.entries(whatifs).map(([change, ms]) => (
        <p key={change} class="dim">
          What if <code>{change}</code>: {milliseconds(ms)}, {(replayed_ms / ms).toFixed(2)}×.
        </p>
      ))}
    </section>
  );
}

function Errors({ job }: { job: JobAnswer }): JSX.Element | null {
  if (!job.errors.length) return null;
  return (
    <section aria-label="Files that cannot be read">
      <h2 class="pane-heading">
        {plural(job.errors.length, "file")} cannot be read; the others are compared
      </h2>
      <ul class="job-errors">
        {job.errors.map((one) => (
          <li key={one.file}>{one.error}</li>
        ))}
      </ul>
    </section>
  );
}
