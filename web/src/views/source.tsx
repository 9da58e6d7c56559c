import { computed } from "@preact/signals";
import type { JSX } from "preact";
import { useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { openLine } from "../api/editor";
import type { Source, SourceLine, Sources } from "../api/types";
import { milliseconds, percent } from "../base/format";
import { perStore } from "../state/per_store";
import type { Store } from "../state/store";
import { ErrorLine, WithAnswer } from "../widgets/answer";
import { ShareBar } from "../widgets/bars";
import { walkRows } from "../widgets/walk_rows";
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

type Per = Sources["per"];

const PER: Record<Per, string> = {
  step: "mean per step",
  recording: "of the whole recording",
};

const SHARE: Record<Per, string> = {
  step: "of the step",
  recording: "of the whole recording",
};

interface CostColumn {
  key: keyof SourceLine & `${string}_ms`;
  title: string;
  hint: string;
}

const COLUMNS: readonly CostColumn[] = [
  { key: "cpu_ms", title: "wall", hint: "time in which the line, or anything it calls, runs" },
  { key: "own_cpu_ms", title: "own", hint: "wall time that belongs to no deeper line" },
  { key: "device_ms", title: "device", hint: "device busy time of what the line launches" },
  {
    key: "own_device_ms",
    title: "own device",
    hint: "device busy time of what the line launches itself, not through a deeper line",
  },
  {
    key: "backward_cpu_ms",
    title: "its backward",
    hint: "wall time of the backward of this line; it runs where backward is called, and counts there",
  },
  {
    key: "backward_device_ms",
    title: "its backward, device",
    hint: "device time of the backward of this line; it counts where backward is called",
  },
];

function bestFile(store: Store): string {
  const files = filesOf(store).value.value?.files ?? [];
  const marked = files.find((one) => store.marks.value.lines.has(one.file));
  return (marked ?? files[0])?.file ?? "";
}

/** Shows a line in the source pane, and what belongs to it in the others. */
export function showLine(store: Store, place: { file: string; line: number }): void {
  const { file, line } = place;
  openLine(file, line);
  if (store.stepless.value) store.set({ pane: "source", file, subject: { file, line } });
  else {
    store.set({ pane: "source" });
    void store.choosePart({ file, line });
  }
}

/** What a line leads to: its operations, or where a path of calls goes through it. */
function followLine(store: Store, per: Per, file: string, line: number): void {
  openLine(file, line);
  if (per === "step") void store.choosePart({ file, line });
  else {
    const find = `${file.slice(file.lastIndexOf("/") + 1)}:${line}`;
    store.set({ pane: "flame", flame: { ...store.view.value.flame, find } });
  }
}

export const source: Pane = {
  id: "source",
  title: "Source",
  hint: "The cost of each source line",
  View: ({ store }) => (
    <WithAnswer answer={filesOf(store)}>
      {(value) => <Files store={store} value={value} />}
    </WithAnswer>
  ),
};

function Files({ store, value }: { store: Store; value: Sources }): JSX.Element {
  const { files, per } = value;
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
                {one.file}: wall {milliseconds(one.cpu_ms)}
                {one.device_ms ? `, device ${milliseconds(one.device_ms)}` : ""}
                {one.readable ? "" : ", no source text"}
              </option>
            ))}
          </select>
        </label>
        <Whole store={store} />
        <span class="dim">{PER[per]}, including what a line calls</span>
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
    <label title="Use the calling contexts of the whole run, not the recorded steps">
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
  const columns = COLUMNS.filter(({ key }) => value.lines.some((one) => one[key] > 0));
  return (
    <>
      {value.text === null && (
        <p class="note">No source text: {value.reason}. These lines have costs.</p>
      )}
      {value.changed && (
        <ErrorLine text="The file changed after the recording: line numbers may be off." />
      )}
      <div class="table-frame" ref={frame} onKeyDown={walkRows}>
        <table class="table source-table">
          <caption class="unseen">
            Lines of {value.file} and what they cost, {PER[value.per]}
          </caption>
          <thead>
            <tr>
              {columns.map(({ key, title, hint }) => (
                <th key={title} scope="col" class={costClass(key)} title={hint}>
                  {title}
                </th>
              ))}
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
                columns={columns}
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
  columns: readonly CostColumn[];
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
      {props.columns.map(({ key }) => (
        <td key={key} class={costClass(key)}>
          {cost && cost[key] > 0 ? milliseconds(cost[key]) : ""}
        </td>
      ))}
      <td class="bar-cell">{cost && <ShareBar share={cost.share} />}</td>
      <td class="number">{cost ? percent(cost.share) : ""}</td>
      <td class="number dim">{number}</td>
      <td class="code">{text}</td>
    </tr>
  );
}

/** What a narrow window leaves out, and what runs elsewhere. */
function costClass(key: CostColumn["key"]): string {
  const [kind] = key.split("_");
  return kind === "own" || kind === "backward" ? `number ${kind}` : "number";
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
