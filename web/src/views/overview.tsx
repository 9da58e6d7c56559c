import type { JSX } from "preact";
import type {
  Device,
  Efficiency,
  Facts,
  Iterations,
  StagePlace,
  Update,
  Warning,
} from "../api/types";
import { causeName, CAUSES } from "../base/causes";
import {
  bytes,
  count,
  grouped,
  milliseconds,
  operationRate,
  percent,
  plural,
  sideName,
  words,
} from "../base/format";
import { prefixes } from "../base/path";
import { Level } from "../model/level";
import { STAGES } from "../model/stages";
import { spot, type Store } from "../state/store";
import { WithAnswer } from "../widgets/answer";
import { ShareBar, Stacked, type Piece } from "../widgets/bars";
import { Coded } from "../widgets/coded";
import { walkRows } from "../widgets/walk_rows";
import { Term } from "../widgets/term";
import type { Pane } from "./pane";
import { FactList } from "../widgets/fact_list";

/** More than these are summed up in one row. */
const MANY_DEVICES = 3;

/** Places of a stage that are listed: so many, and from this share of the step on. */
const MANY_PLACES = 5;
const LEAST_OF_A_PLACE = 0.005;
const MUCH_OTHER = 0.05;

export const overview: Pane = {
  id: "overview",
  title: "Overview",
  hint: "What bounds the step, its stages, and why the device is idle",
  View: ({ store }) => (
    <WithAnswer answer={store.facts}>
      {(value) => value.facts && <Whole store={store} facts={value.facts} />}
    </WithAnswer>
  ),
};

function Whole(props: { store: Store; facts: Facts }): JSX.Element {
  const { store, facts } = props;
  return (
    <div class="overview-frame">
      <div class="overview">
        <section aria-label="Steps">
          <Numbers facts={facts} />
          {facts.steps.unknown_spread && <p class="dim">{facts.steps.unknown_spread}</p>}
        </section>
        <Stages store={store} facts={facts} />
        <section aria-label="Device">
          {facts.devices.map((one) => (
            <Device key={one.device} device={one} />
          ))}
          <Kinds facts={facts} />
        </section>
        <Updates facts={facts} />
        <Warnings warnings={facts.warnings} />
      </div>
    </div>
  );
}

function Numbers({ facts }: { facts: Facts }): JSX.Element {
  const { steps } = facts;
  const one = steps.numbers.length === 1;
  const rows: [string, string][] = [
    [
      one ? `Step ${steps.numbers[0]}` : `Step, mean of ${steps.numbers.length}`,
      milliseconds(steps.mean_ms),
    ],
  ];
  if (!one)
    rows.push([
      "Fastest to slowest",
      `${milliseconds(steps.min_ms)} – ${milliseconds(steps.max_ms)}`,
    ]);
  if (steps.warm_up)
    rows.push([`Warm-up step ${steps.warm_up.step}, left out`, milliseconds(steps.warm_up.ms)]);
  if (typeof facts.capture.step_is === "string") rows.push(["Step is", facts.capture.step_is]);
  const cost = facts.recording_cost;
  if (typeof cost.recorded_ns === "number" && typeof cost.unrecorded_ns === "number") {
    rows.push(["Step as recorded", milliseconds(cost.recorded_ns / 1e6)]);
    rows.push(["Step without recording", milliseconds(cost.unrecorded_ns / 1e6)]);
  }
  if (facts.core_share !== null && facts.core_share < 0.95)
    rows.push(["Share of a core", percent(facts.core_share)]);
  rows.push(["Waiting for data", milliseconds(facts.data_wait_ms)]);
  if (facts.run) rows.push(["Of the run", shares(facts.run.shares)]);
  rows.push(...facts.iterations.map(iterations));
  if (facts.efficiency) rows.push(...operations(facts.efficiency));
  if (facts.parameters !== null) rows.push(["Parameters", grouped(facts.parameters)]);
  if (facts.parameter_bytes !== null) rows.push(["Parameter memory", bytes(facts.parameter_bytes)]);
  rows.push(...peakMemory(facts.peak_memory_bytes));
  return <FactList class="numbers" facts={rows} />;
}

/** A row for each device, or one for many. */
function peakMemory(peaks: Record<string, number>): [string, string][] {
  const all = Object.entries(peaks);
  all.sort(([a], [b]) => a.localeCompare(b, undefined, { numeric: true }));
  const each = all.map(([device, peak]): [string, string] => [
    `Peak memory, ${sideName(device)}`,
    bytes(peak),
  ]);
  if (all.length <= MANY_DEVICES) return each;
  const [least, most] = [Math.min, Math.max].map((of) => bytes(of(...Object.values(peaks))));
  const range = least === most ? `${most} each` : `${least} – ${most}`;
  return [[`Peak memory of ${all.length} devices`, range]];
}

/** `training steps 71 %, evaluation 24 %`. */
function shares(run: Record<string, number>): string {
  const shown = Object.entries(run).filter(([, share]) => share >= 0.005);
  return shown
    .map(([stage, share]) => `${stage.replaceAll("_", " ")} ${percent(share)}`)
    .join(", ");
}

/** `Decode, 22 iterations` and `1.4 ms, 2 tokens`. */
function iterations(kind: Iterations): [string, string] {
  const tokens = (kind.prefill_tokens ?? 0) + (kind.decode_tokens ?? 0);
  const many = tokens ? `, ${grouped(Math.round(tokens))} tokens` : "";
  const name = words(kind.stage).replace(/^./, (first) => first.toUpperCase());
  return [`${name}, ${plural(kind.count, "iteration")}`, `${milliseconds(kind.ms)}${many}`];
}

/** Operations a second, and what share of the device's peak that is. */
function operations(facts: Efficiency): [string, string][] {
  const rate: [string, string] = ["Operations", operationRate(facts.tflops * 1e12)];
  if (facts.mfu === null) return [rate];
  const least = facts.known < 0.995 ? "at least " : "";
  return [rate, ["MFU", `${least}${percent(facts.mfu)}`]];
}

/** `GPU 3: Tesla V100`. */
function deviceTitle({ device, name }: Device): string {
  const kind = !name || /mtia|tpu|npu/i.test(name) ? "Device" : "GPU";
  return name ? `${kind} ${device}: ${name}` : `${kind} ${device}`;
}

function Stages({ store, facts }: { store: Store; facts: Facts }): JSX.Element {
  if (!facts.stages.length)
    return (
      <section aria-label="Stages">
        <h2 class="pane-heading">Stages of a step</h2>
        <p class="dim">
          {facts.devices.length
            ? "Not known: the trace has device work alone, without the calls behind it."
            : "Not known: no event of the trace is an operator or a mark of a stage."}
        </p>
      </section>
    );
  const device = facts.stages.some((one) => one.device_ms > 0);
  const most = Math.max(...facts.stages.map((one) => Math.max(one.cpu_ms, one.device_ms)), 1e-9);
  return (
    <section aria-label="Stages">
      <table class="table stages">
        <caption class="pane-heading">
          <Term name="Stage">Stages</Term> of a <Term name="Step">step</Term>
        </caption>
        <thead>
          <tr>
            <th scope="col">stage</th>
            <th
              scope="col"
              class="number"
              title="Time that the training loop's thread spends in it"
            >
              wall
            </th>
            {device && (
              <th scope="col" class="number">
                device
              </th>
            )}
            <th scope="col" class="number">
              share
            </th>
            <th scope="col" class="stage-bars">
              <span class="unseen">bars</span>
            </th>
            <th scope="col">bound by</th>
          </tr>
        </thead>
        <tbody onKeyDown={walkRows}>
          {facts.stages.flatMap((one) => [
            <tr
              key={one.stage}
              tabIndex={0}
              data-stage={one.stage}
              onClick={() => openStage(store, one.stage)}
            >
              <td>
                <span class={`swatch c-${one.stage}`} aria-hidden="true" /> {words(one.stage)}
              </td>
              <td class="number">{milliseconds(one.cpu_ms)}</td>
              {device && <td class="number">{milliseconds(one.device_ms)}</td>}
              <td class="number">{percent(one.share)}</td>
              <td class="stage-bars">
                <ShareBar share={one.cpu_ms / most} kind="cpu" />
                {device && <ShareBar share={one.device_ms / most} kind="device" />}
              </td>
              <td>{one.bound_by && <Bound by={one.bound_by} />}</td>
            </tr>,
            ...placeRows(facts.places, one.stage, device),
          ])}
          <NotSampled facts={facts} />
        </tbody>
      </table>
    </section>
  );
}

/** The functions and lines where most of a stage outside of training is. */
function placeRows(places: readonly StagePlace[], stage: string, device: boolean): JSX.Element[] {
  const shown = places.filter((one) => one.stage === stage && one.share >= LEAST_OF_A_PLACE);
  return shown.slice(0, MANY_PLACES).map((one) => (
    <tr key={`${one.file}:${one.line}`} class="dim">
      <td class="inner" title={`${one.file}:${one.line}`}>
        {one.function !== "<module>" && `${one.function}, `}
        {one.file.split("/").at(-1)}:{one.line}
      </td>
      <td class="number" title={one.samples ? `from ${one.samples} samples` : undefined}>
        {milliseconds(one.ms)}
        {one.samples > 0 && ` ± ${milliseconds(one.error_ms)}`}
      </td>
      {device && <td />}
      <td class="number">{percent(one.share)}</td>
      <td />
      <td />
    </tr>
  ));
}

/** Why the lines of `other`, the last stage, are not known, if it matters. */
function NotSampled({ facts }: { facts: Facts }): JSX.Element | null {
  const other = facts.stages.find((one) => one.stage === "other");
  if (!facts.not_sampled || !other || other.share < MUCH_OTHER) return null;
  return (
    <tr class="dim">
      <td class="inner reason" colSpan={6}>
        no functions and lines: {facts.not_sampled}
      </td>
    </tr>
  );
}

/** The updates of several optimizers; columns are stages, in device time where there is a device. */
function Updates({ facts }: { facts: Facts }): JSX.Element {
  const side = facts.devices.length ? "device_ms" : "cpu_ms";
  const there = new Set(facts.updates.flatMap((one) => one.stages.map(({ stage }) => stage)));
  const stages = STAGES.filter((stage) => there.has(stage));
  if (!facts.updates.length) return <></>;
  return (
    <section aria-label="Updates" class="updates" tabIndex={0}>
      <table class="table stages">
        <caption class="pane-heading">
          <Term name="Update">Updates</Term> of a step, {sideName(side.replace("_ms", ""))} time
        </caption>
        <thead>
          <tr>
            <th scope="col">optimizer</th>
            <th scope="col" class="number">
              times
            </th>
            {stages.map((stage) => (
              <th key={stage} scope="col" class="number">
                <span class={`swatch c-${stage}`} aria-hidden="true" /> {words(stage)}
              </th>
            ))}
            <th scope="col" class="number">
              share
            </th>
          </tr>
        </thead>
        <tbody>
          {facts.updates.flatMap((update) => [
            <tr key={update.optimizer}>
              <td>{update.optimizer}</td>
              <td class="number">{Number(update.count.toPrecision(3))}</td>
              {stages.map((stage) => {
                const spent = update.stages.find((one) => one.stage === stage);
                return (
                  <td key={stage} class="number">
                    {spent && milliseconds(spent[side])}
                  </td>
                );
              })}
              <td class="number">{percent(update[side] / (facts.steps.mean_ms || 1))}</td>
            </tr>,
            ...modelRows(update, stages, side),
          ])}
        </tbody>
      </table>
    </section>
  );
}

/** The passes of each model in an update, where there are several. */
function modelRows(
  update: Update,
  stages: readonly string[],
  side: "cpu_ms" | "device_ms",
): JSX.Element[] {
  if (update.models.length < 2) return [];
  return update.models.map((model) => {
    const spent: Record<string, number> = {
      forward: model[`forward_${side}`],
      backward: model[`backward_${side}`],
    };
    return (
      <tr key={`${update.optimizer}/${model.path}`} class="dim">
        <td class="inner">{model.path}</td>
        <td />
        {stages.map((stage) => (
          <td key={stage} class="number">
            {spent[stage] ? milliseconds(spent[stage]) : ""}
          </td>
        ))}
        <td />
      </tr>
    );
  });
}

/** Which side holds an operation up; a word beside the color. */
export function Bound({ by }: { by: string }): JSX.Element {
  return <span class={`bound bound-${by}`}>{sideName(by)}</span>;
}

/** The longest run of a stage in the step on screen, or in that at which the trace begins. */
export function openStage(store: Store, stage: string): void {
  const { path, every } = store.view.value;
  const step = prefixes(path || (store.overview.value.value?.start ?? ""))[1];
  if (step === undefined) return;
  void store.goWhere(async (client) => {
    const level = new Level((await client.levels(step, every)).at(-1)!);
    const runs = level.all().filter((one) => one.kind === "stage" && one.name === words(stage));
    const longest = runs.sort((a, b) => Math.max(b.cpu, b.device) - Math.max(a.cpu, a.device))[0];
    if (!longest) throw new Error(`The step on screen has no ${words(stage)}.`);
    return spot(longest.path);
  });
}
/** Parts that are no stages are shades, dark to light, then patterns; the last is for all the rest. */
function partColor(place: number): string {
  return `c-part-${Math.min(place, 7)}`;
}

function Device({ device }: { device: Device }): JSX.Element {
  const order = Object.keys(CAUSES);
  const idle = Object.entries(device.idle_ms)
    .sort(([a], [b]) => order.indexOf(a) - order.indexOf(b))
    .map(([cause, ms]): Part => ({
      name: cause === "communication" ? causeName(cause) : `idle, ${causeName(cause)}`,
      ms,
      hint: CAUSES[cause]?.[1] ?? "",
    }));
  const pieces = [...busyParts(device), ...idle].map(({ name, ms, hint }, i): Piece => ({
    name,
    value: ms,
    color: partColor(i),
    text: milliseconds(ms),
    hint,
  }));
  return (
    <>
      <h2 class="pane-heading" title="each step until its device work ends">
        {deviceTitle(device)}, {milliseconds(device.window_ms)} a step
      </h2>
      <Stacked label={`Time of ${deviceTitle(device)}`} pieces={pieces} />
      {device.overlapped_ms > 0 && (
        <p class="dim beside">
          {milliseconds(device.overlapped_ms)} more of communication overlaps with computation; the
          rest is <Term name="Exposed communication">exposed</Term>.
        </p>
      )}
    </>
  );
}

/** From this share of the window on, copies are listed by themselves. */
const NOTED_COPIES = 0.01;

interface Part {
  name: string;
  ms: number;
  hint: string;
}

/** What a device computes, and what it only copies. */
function busyParts({ computing_ms, copying_ms, window_ms }: Device): Part[] {
  const hint = "copies and fills of memory run, and no kernel";
  const copying = copying_ms >= NOTED_COPIES * window_ms ? copying_ms : 0;
  const computing = { name: "computing", ms: computing_ms - copying, hint: "" };
  return copying ? [computing, { name: "only copying", ms: copying, hint }] : [computing];
}

function Kinds({ facts }: { facts: Facts }): JSX.Element {
  const kinds = Object.entries(facts.kinds).sort((a, b) => b[1] - a[1]);
  if (!kinds.length) return <></>;
  const pieces = kinds.map(([kind, ms], i): Piece => ({
    name: words(kind),
    value: ms,
    color: partColor(i),
    text: milliseconds(ms),
  }));
  return (
    <>
      <h2 class="pane-heading">{facts.devices.length ? "Device work" : "Operators"} by kind</h2>
      <Stacked label="Time by kind of work" pieces={pieces} />
    </>
  );
}

/** What a reader of the figures has to know of the recording; nothing where it is whole. */
export function Warnings({ warnings }: { warnings: readonly Warning[] }): JSX.Element | null {
  if (!warnings.length) return null;
  return (
    <section aria-label="Warnings" class="warnings">
      <h2 class="pane-heading">Warnings</h2>
      <ul>
        {warnings.map((one) => (
          <li key={one.code}>
            <Coded text={one.message} />
            {one.count > 1 && <span class="dim"> ×{count(one.count)}</span>}
          </li>
        ))}
      </ul>
    </section>
  );
}
