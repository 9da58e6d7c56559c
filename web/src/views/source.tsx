import { computed } from "@preact/signals";
import type { JSX } from "preact";
import { useLayoutEffect, useMemo, useRef } from "preact/hooks";
import type { Source, SourceFile, SourceLine } from "../api/types";
import { milliseconds, percent } from "../base/format";
import { perStore } from "../state/per_store";
import type { Store } from "../state/store";
import { ErrorLine, WithAnswer } from "../widgets/answer";
import { ShareBar } from "../widgets/bars";
import type { Pane } from "./pane";

const filesOf = perStore((store) => store.follow((client) => client.sources()));

/** The file on screen: the one that was picked, else that of a marked line, else the first. */
const fileOf = perStore((store) => computed(() => store.view.value.file || bestFile(store)));

const sourceOf = perStore((store) =>
  store.follow((client) => (fileOf(store).value ? client.source(fileOf(store).value) : null)),
);

function bestFile(store: Store): string {
  const files = filesOf(store).value.value ?? [];
  const marked = files.find((one) => store.marks.value.lines.has(one.file));
  return (marked ?? files[0])?.file ?? "";
}

export const source: Pane = {
  id: "source",
  title: "Source",
  hint: "Your source, each line with what it costs",
  View: ({ store }) => (
    <WithAnswer answer={filesOf(store)}>
      {(files) => <Files store={store} files={files} />}
    </WithAnswer>
  ),
};

function Files({ store, files }: { store: Store; files: SourceFile[] }): JSX.Element {
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
      <div class="pane-tools">
        <label>
          File{" "}
          <select
            value={fileOf(store).value}
            onChange={(event) => store.set({ file: event.currentTarget.value })}
          >
            {files.map((one) => (
              <option key={one.file} value={one.file}>
                {one.file} — CPU {milliseconds(one.cpu_ms)}
                {one.device_ms ? `, device ${milliseconds(one.device_ms)}` : ""}
                {one.readable ? "" : ", not at hand"}
              </option>
            ))}
          </select>
        </label>
      </div>
      <WithAnswer answer={sourceOf(store)}>
        {(value) => <Lines store={store} value={value} />}
      </WithAnswer>
    </div>
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
  const marked = store.marks.value.lines.get(value.file);
  const first = marked ? [...marked][0] : costliest(value);
  useLayoutEffect(() => {
    const row = frame.current?.querySelector<HTMLElement>(`[data-line="${first}"]`);
    if (row) frame.current!.scrollTop = row.offsetTop - frame.current!.clientHeight / 2;
  }, [first, value]);
  const device = value.lines.some((one) => one.forward_device_ms + one.backward_device_ms > 0);
  return (
    <>
      {value.text === null && <ErrorLine text={`Only the lines that cost: ${value.reason}`} />}
      {value.changed && (
        <ErrorLine text="The file has changed since it was recorded: lines may be off." />
      )}
      <div class="table-frame" ref={frame}>
        <table class="table source-table">
          <caption class="unseen">Lines of {value.file} and what they cost a step</caption>
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
              <th scope="col" class="number" colSpan={2}>
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
  marked: boolean;
}): JSX.Element {
  const { number, text, cost } = props.line;
  const choose = (): void => void props.store.choosePart({ file: props.file, line: number });
  return (
    <tr
      data-line={number}
      class={props.marked ? "marked" : undefined}
      tabIndex={cost ? 0 : undefined}
      onClick={cost ? choose : undefined}
      onKeyDown={(event) => event.key === "Enter" && cost && choose()}
    >
      <td class="number">{cost ? milliseconds(cost.forward_cpu_ms + cost.backward_cpu_ms) : ""}</td>
      {props.device && (
        <td class="number">
          {cost ? milliseconds(cost.forward_device_ms + cost.backward_device_ms) : ""}
        </td>
      )}
      <td class="bar-cell">{cost && <ShareBar share={cost.share} />}</td>
      <td class="number">{cost ? percent(cost.share) : ""}</td>
      <td class="number dim">{number}</td>
      <td class="code">{text}</td>
    </tr>
  );
}

/** All lines of the text, or those that cost where the text is not at hand. */
function textLines(value: Source): TextLine[] {
  const costs = new Map(value.lines.map((one) => [one.line, one]));
  if (value.text === null) {
    return value.lines.map((one) => ({ number: one.line, text: "", cost: one }));
  }
  return value.text
    .split("\n")
    .map((text, i) => ({ number: i + 1, text, cost: costs.get(i + 1) ?? null }));
}

function costliest(value: Source): number | undefined {
  return [...value.lines].sort((a, b) => b.share - a.share)[0]?.line;
}
