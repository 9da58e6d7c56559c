import type { JSX } from "preact";
import type { Finding, FindingPlace, Findings, Patch as FindingPatch } from "../api/types";
import { count, milliseconds, percent, plural, words } from "../base/format";
import { titleOf } from "../base/sentences";
import { perStore } from "../state/per_store";
import type { Store } from "../state/store";
import { WithAnswer } from "../widgets/answer";
import { ShareBar } from "../widgets/bars";
import { Coded } from "../widgets/coded";
import { CopyButton } from "../widgets/copy";
import type { Pane } from "./pane";
import { showLine } from "./source";

export const findingsOf = perStore((store) =>
  store.follow(
    (client) => client.findings(),
    ({ facts, has }) => facts !== null || has.contexts,
  ),
);

/** Predicts the effect of some changes: its numbers, and the step on screen above its prediction. */
export function tryChanges(store: Store, changes: string[]): void {
  const { path } = store.view.value;
  const start = path ? {} : { path: store.overview.value.value?.start ?? "", window: null };
  store.set({ ...start, pane: "whatif", over: "predicted", changes });
}

export const findings: Pane = {
  id: "findings",
  title: "Findings",
  hint: "What is slow, what to do, and the expected gain",
  View: ({ store }) => (
    <WithAnswer answer={findingsOf(store)}>
      {(value) => <List store={store} value={value} />}
    </WithAnswer>
  ),
};

/** What one-off costs and delays are not part of. */
const WITHOUT_DELAYS = "without one-off costs and delays";

/** Whether one-off costs and delays are a visible part of a step. */
function differs({ step_ms, steady_ms }: Findings): boolean {
  return steady_ms > 0 && steady_ms < 0.99 * step_ms;
}

/** `1.63 ms a step (27 %)`, with what it is a share of where that is not the step as it was. */
export function gainText(found: Findings, { gain_ms, share, share_of }: Finding): string {
  const saved = `${milliseconds(gain_ms)}${share_of === "whole run" ? "" : " a step"}`;
  const whole = share_of === "run" ? "run after start-up" : share_of;
  if (share_of !== "step") return `${saved} (${percent(share)} of the ${whole})`;
  if (!differs(found)) return `${saved} (${percent(share)})`;
  return `${saved}, ${percent(share)} of the ${milliseconds(found.steady_ms)} ${WITHOUT_DELAYS}`;
}

/** The findings as a list for an issue or a review. */
export function markdownOf(found: Findings): string {
  const lines = found.findings.map((one) => {
    const gain = one.gain_ms > 0 ? ` Could save ${gainText(found, one)}.` : "";
    return `- **${one.severity}**: ${one.what}${gain}\n  ${one.advice}`;
  });
  return `${lines.join("\n")}\n`;
}

function List({ store, value }: { store: Store; value: Findings }): JSX.Element {
  const number = value.findings.length;
  const ranks = store.overview.value.value?.ranks.length ?? 1;
  return (
    <div class="findings">
      <p class="dim">
        {number === 0
          ? `None of ${value.rules} rules found anything`
          : `${plural(number, "finding")} of ${value.rules} rules`}{" "}
        in {store.stepless.value ? "" : "a step of "}
        {milliseconds(value.step_ms)}
        {differs(value) && ` (${milliseconds(value.steady_ms)} ${WITHOUT_DELAYS})`}
        {store.stepless.value && " of operators a step"}
        {value.leaves_out_a_step && " (without the warm-up step)"}
        {ranks > 1 ? ` on rank ${value.rank}` : ""}. {value.nothing}
        {number > 1 && " Gains do not add up: each assumes its change alone."}{" "}
        {number > 0 && (
          <CopyButton text={() => markdownOf(value)} label="Copy the findings as Markdown" />
        )}
      </p>
      <ul>
        {value.findings.map((one) => (
          <Card key={one.id} store={store} finding={one} />
        ))}
      </ul>
    </div>
  );
}

/** A finding; a click on it marks its evidence everywhere, one on a row of evidence that alone. */
function Card({ store, finding }: { store: Store; finding: Finding }): JSX.Element {
  const { subject } = store.view.value;
  const chosen = subject !== null && "finding" in subject && subject.finding === finding.id;
  const title = titleOf(finding.what);
  const place = chosen && "place" in subject ? subject.place : undefined;
  return (
    <li class={`finding severity-${finding.severity}`} data-rule={finding.rule}>
      <button
        type="button"
        class="finding-head"
        aria-pressed={chosen && place === undefined}
        title={store.stepless.value ? "Show where it is" : "Mark its evidence everywhere"}
        onClick={() => showFinding(store, finding)}
      >
        <span class="severity">{finding.severity}</span>
        <span class="finding-what">
          {title}
          <span class="dim">{finding.what.slice(title.length)}</span>
        </span>
        <span class="finding-gain">
          <b>{milliseconds(finding.gain_ms)}</b>
          <ShareBar share={finding.share} />
          {percent(finding.share)}
        </span>
      </button>
      <p>
        <Coded text={finding.advice} />
      </p>
      {finding.patch && <Patch patch={finding.patch} />}
      <Evidence
        finding={finding}
        chosen={place}
        onChoose={(index) => showFinding(store, finding, index)}
      />
      <Gain store={store} finding={finding} />
    </li>
  );
}

/** The lines to change, before and after. */
function Patch({ patch }: { patch: FindingPatch }): JSX.Element {
  const where = `${patch.file}:${patch.line}`;
  const lines = changedLines(patch);
  return (
    <div class="patch">
      <div class="patch-head">
        <code>
          <bdi>{where}</bdi>
        </code>
        <CopyButton text={[where, ...lines].join("\n")} label={`Copy the patch of ${where}`} />
      </div>
      <pre role="region" aria-label={`Patch of ${where}`} tabIndex={0}>
        {lines.map((line, index) => (
          <code key={index} class={line.startsWith("-") ? "removed" : "added"}>
            {line}
          </code>
        ))}
      </pre>
    </div>
  );
}

/** The lines that differ, each before and after. */
export function changedLines(patch: FindingPatch): string[] {
  const after = patch.after.split("\n");
  return patch.before
    .split("\n")
    .flatMap((old, index) =>
      old === after[index] ? [] : [`- ${old.trim()}`, `+ ${after[index]!.trim()}`],
    );
}

function Evidence(props: {
  finding: Finding;
  chosen: number | undefined;
  onChoose: (index: number) => void;
}): JSX.Element {
  const { evidence, places } = props.finding;
  return (
    <ul class="evidence" aria-label="Evidence">
      {evidence.map((place, index) => (
        <li key={index}>
          <button
            type="button"
            aria-pressed={props.chosen === index}
            title={place.name}
            onClick={() => props.onChoose(index)}
          >
            <span class="evidence-name">{place.short}</span>
            <span class="dim">
              {count(place.count)} a step, {milliseconds(place.ms)} in all
              {place.stage ? `, ${words(place.stage)}` : ""}
            </span>
            <span class="evidence-where">
              <bdi>{whereOf(place)}</bdi>
            </span>
          </button>
        </li>
      ))}
      {places > evidence.length && <li class="dim">and in {places - evidence.length} more</li>}
    </ul>
  );
}

/** Shows a finding, or one place of it: in the timeline, else where its time went. */
export function showFinding(store: Store, finding: Finding, index?: number): void {
  const place = finding.evidence[index ?? 0];
  if (!store.stepless.value) {
    const which = index === undefined ? {} : { place: index };
    void store.choosePart({ finding: finding.id, ...which });
  } else if (place) showPlace(store, place);
}

/** Without a timeline to mark: a line leads to the source, all else to its boxes. */
function showPlace(store: Store, place: FindingPlace): void {
  const { file, line, name } = place;
  if (file && line !== null) showLine(store, { file, line });
  else store.set({ pane: "flame", flame: { ...store.view.value.flame, find: name } });
}

/** The module, and the line that led there. */
function whereOf(place: FindingPlace): string {
  const line = place.line === null ? "" : `:${place.line}`;
  const name = place.file.split("/").slice(-2).join("/");
  const code = name + line + (place.function ? ` in ${place.function}` : "");
  return [place.module, place.file ? code : ""].filter(Boolean).join(" · ");
}

/** A gain, which may be none. */
function time(ms: number): string {
  return ms > 0 ? milliseconds(ms) : "0";
}

function Gain({ store, finding }: { store: Store; finding: Finding }): JSX.Element {
  const [least, most] = finding.range_ms ?? [null, null];
  const [low, high] = [time(least ?? 0), time(most ?? 0)];
  const range = least === null || low === high ? "" : ` (${low} to ${high})`;
  return (
    <p class="dim finding-by">
      could save {milliseconds(finding.gain_ms)}
      {range}: {finding.gain_by}
      {finding.changes.length > 0 && (
        <button
          type="button"
          class="try-it"
          title={finding.changes.join(" ")}
          onClick={() => tryChanges(store, finding.changes)}
        >
          Try it
        </button>
      )}
    </p>
  );
}
