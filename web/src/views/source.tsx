import { computed } from "@preact/signals";
import type { JSX } from "preact";
import { useLayoutEffect, useMemo, useRef } from "preact/hooks";
import type { Per, Source, SourceLine, Sources } from "../api/types";
import { milliseconds, percent } from "../base/format";
import { perStore } from "../state/per_store";
import type { Store } from "../state/store";
import { ErrorLine, WithAnswer } from "../widgets/answer";
import { ShareBar } from "../widgets/bars";
import { walkRows } from "../widgets/table";
import type { Pane } from "./pane";

const wholeOf = perStore((store) => computed(() => store.view.value.whole));

const filesOf = perStore((store) =>
  store.inScope((client, scope) => client.sources(scope, wholeOf(store).value)),
);

/** The file on screen: the one that was picked, else that of a marked line, else the first. */
const fileOf = perStore((store) => computed(() => store.view.value.file || bestFile(store)));

const sourceOf = perStore((store) =>
  store.inScope((client, scope) => {
    const file = fileOf(store).value;
    return file ? client.source(file, scope, wholeOf(store).value) : null;
  }),
);

const WHAT: Record<string, string> = { call: "calls ", class: "class ", frame: "in " };

const PER: Record<Per, string> = {
  step: "means a step",
  recording: "of the whole recording",
};

const SHARE: Record<Per, string> = {
  step: "of the step",
  recording: "of the whole recording",
};

function bestFile(store: Store): string {
  const files = filesOf(store).value.value?.files ?? [];
  const marked = files.find((one) => store.marks.value.lines.has(one.file));
  return (marked ?? files[0])?.file ?? "";
}

/** Shows a line in the source pane, and what belongs to it in the others. */
export function showLine(store: Store, place: { file: string; line: number }): void {
  const { file, line } = place;
  if (store.stepless.value) store.set({ pane: "source", file, subject: { file, line } });
  else {
    store.set({ pane: "source" });
    void store.choosePart({ file, line });
  }
}

/** What a line leads to: its operations, or where a path of calls goes through it. */
function followLine(store: Store, per: Per, file: string, line: number): void {
  if (per === "step") void store.choosePart({ file, line });
  else {
    const find = `${file.slice(file.lastIndexOf("/") + 1)}:${line}`;
    store.set({ pane: "flame", flame: { ...store.view.value.flame, find } });
  }
}

export const source: Pane = {
  id: "source",
  title: "Source",
  hint: "Your source, each line with what it costs",
  View: ({ store }) => (
    <WithAnswer answer={filesOf(store)}>
      {(value) => <Files store={store} value={value} />}
    </WithAnswer>
  ),
};

function Files({ store, value }: { store: Store; value: Sources }): JSX.Element {
  const { files, per } = value;
  if (!files.length) {
    return (
      <p class="nothing">
        This trace names no line of source. <code>stepscope run</code> records where modules are
        called.
      </p>
    );
  }
  return (
    <div class="pane-column">
      <div class="pane-tools source-tools">
        <label>
          File{" "}
          <select
            value={fileOf(store).value}
            onChange={(event) => store.set({ file: event.currentTarget.value })}
          >
            {files.map((one) => (
              <option key={one.file} value={one.file}>
                {one.file}: CPU {milliseconds(one.cpu_ms)}
                {one.device_ms ? `, device ${milliseconds(one.device_ms)}` : ""}
                {one.readable ? "" : ", not at hand"}
              </option>
            ))}
          </select>
        </label>
        <Whole store={store} />
        <span class="dim">{PER[per]}, with all that a line calls</span>
      </div>
      <WithAnswer answer={sourceOf(store)}>
        {(answer) => <Lines store={store} value={answer} />}
      </WithAnswer>
    </div>
  );
}

/** Where a file has both steps and contexts: which of them tells what lines cost. */
function Whole({ store }: { store: Store }): JSX.Element | null {
  const overview = store.overview.value.value;
  if (!overview?.has.contexts || !overview.facts) return null;
  return (
    <label title="By the calling contexts that were collected, not by the recorded steps">
      <input
        type="checkbox"
        checked={store.view.value.whole}
        onChange={(event) => store.set({ whole: event.currentTarget.checked })}
      />
      Whole recording
    </label>
  );
}

interface TextLine {
  number: number;
  text: string;
  cost: SourceLine | null;
}

function Lines({ store, value }: { store: Store; value: Source }): JSX.Element {
  const frame = useRef<HTMLDivElement>(null);
  const lines = useMemo(() => textLines(value), [value]);
  const marked = store.marks.value.lines.get(value.file) ?? chosenLine(store, value.file);
  const first = marked ? [...marked][0] : costliest(value);
  useLayoutEffect(() => {
    const row = frame.current?.querySelector<HTMLElement>(`[data-line="${first}"]`);
    if (row) frame.current!.scrollTop = row.offsetTop - frame.current!.clientHeight / 2;
  }, [first, value]);
  const device = value.lines.some((one) => deviceOf(one) > 0);
  return (
    <>
      {value.text === null && <ErrorLine text={`Only the lines that cost: ${value.reason}`} />}
      {value.changed && (
        <ErrorLine text="The file has changed since it was recorded: lines may be off." />
      )}
      <div class="table-frame" ref={frame} onKeyDown={walkRows}>
        <table class="table source-table">
          <caption class="unseen">
            Lines of {value.file} and what they cost, {PER[value.per]}
          </caption>
          <thead>
            <tr>
              <th scope="col" class="number">
                CPU
              </th>
              {device && (
                <th scope="col" class="number">
                  device
                </th>
              )}
              <th scope="col" class="number" colSpan={2} title={SHARE[value.per]}>
                share
              </th>
              <th scope="col" class="number">
                line
              </th>
              <th scope="col">source</th>
            </tr>
          </thead>
          <tbody>
            {lines.map((one) => (
              <SourceRow
                key={one.number}
                store={store}
                line={one}
                device={device}
                file={value.file}
                per={value.per}
                marked={marked?.has(one.number) ?? false}
              />
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}

function SourceRow(props: {
  store: Store;
  line: TextLine;
  device: boolean;
  file: string;
  per: Per;
  marked: boolean;
}): JSX.Element {
  const { number, text, cost } = props.line;
  const choose = (): void => followLine(props.store, props.per, props.file, number);
  return (
    <tr
      data-line={number}
      class={props.marked ? "marked" : undefined}
      tabIndex={cost ? 0 : undefined}
      onClick={cost ? choose : undefined}
    >
      <td class="number" title={cost ? split(cost, "cpu") : undefined}>
        {cost ? milliseconds(cpuOf(cost)) : ""}
      </td>
      {props.device && (
        <td class="number" title={cost ? split(cost, "device") : undefined}>
          {cost ? milliseconds(deviceOf(cost)) : ""}
        </td>
      )}
      <td class="bar-cell">{cost && <ShareBar share={cost.share} />}</td>
      <td class="number">{cost ? percent(cost.share) : ""}</td>
      <td class="number dim">{number}</td>
      <td class="code">{text}</td>
    </tr>
  );
}

function cpuOf(line: SourceLine): number {
  return line.forward_cpu_ms + line.backward_cpu_ms + line.other_cpu_ms;
}

function deviceOf(line: SourceLine): number {
  return line.forward_device_ms + line.backward_device_ms + line.other_device_ms;
}

/** `forward 3.10 ms, backward 2.00 ms`: what a line's time is made of. */
function split(line: SourceLine, side: "cpu" | "device"): string {
  return (["forward", "backward", "other"] as const)
    .map((phase) => [phase, line[`${phase}_${side}_ms`]] as const)
    .filter(([, ms]) => ms > 0)
    .map(([phase, ms]) => `${phase} ${milliseconds(ms)}`)
    .join(", ");
}

function chosenLine(store: Store, file: string): ReadonlySet<number> | undefined {
  const { subject } = store.view.value;
  return subject && "file" in subject && subject.file === file
    ? new Set([subject.line])
    : undefined;
}

/** All lines of the text, or those that cost where the text is not at hand. */
function textLines(value: Source): TextLine[] {
  // A line may call a module and be a frame as well: the larger of both holds all of it.
  const ordered = [...value.lines].sort((a, b) => a.share - b.share);
  const costs = new Map(ordered.map((one) => [one.line, one]));
  if (value.text === null) {
    return [...costs.values()]
      .sort((a, b) => a.line - b.line)
      .map((one) => ({ number: one.line, text: `${WHAT[one.what] ?? ""}${one.name}`, cost: one }));
  }
  return value.text
    .split("\n")
    .map((text, i) => ({ number: i + 1, text, cost: costs.get(i + 1) ?? null }));
}

function costliest(value: Source): number | undefined {
  return [...value.lines].sort((a, b) => b.share - a.share)[0]?.line;
}
