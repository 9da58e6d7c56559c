import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useLayoutEffect } from "preact/hooks";
import type { Modules, ModuleNode } from "../api/types";
import { count, grouped, milliseconds } from "../base/format";
import { costOf, cpuOf, deviceOf, treeRows, waysTo, type TreeRow } from "../model/modules";
import { perStore } from "../state/per_store";
import type { Store } from "../state/store";
import { WithAnswer } from "../widgets/answer";
import { ShareBar } from "../widgets/bars";
import { overSteps } from "./kernels/pane";
import type { Pane } from "./pane";

const treeOf = perStore((store) => store.scoped((client, scope) => client.modules(scope)));

export const modules: Pane = {
  id: "modules",
  title: "Model",
  hint: "The model's modules with the cost of each, forward and backward",
  View: ({ store }) => (
    <WithAnswer answer={treeOf(store)}>
      {(value) => <Tree key={store.client.value?.trace} store={store} value={value} />}
    </WithAnswer>
  ),
};

const FEW = 3;

const EVIDENCE: Record<string, string> = {
  ranges: "ranges that stepscope recorded",
  nn_module: "recorded events of nn.Module",
  scopes: "named scopes of compiled operations",
  matched: "matching the names of operators, in order",
};

function Tree({ store, value }: { store: Store; value: Modules }): JSX.Element {
  const open = useSignal<ReadonlySet<string>>(
    new Set(value.tree.map((one) => `/${one.path || one.name}`)),
  );
  const unfolded = useSignal<ReadonlySet<string>>(new Set());
  const marked = store.marks.value.modules;
  const rows = treeRows(value.tree, open.value, unfolded.value);
  const most = Math.max(...value.tree.map(costOf), 1e-9);
  const shows: Shows = {
    device: value.tree.some((one) => deviceOf(one) > 0),
    backward: value.tree.some((one) => one.backward_cpu_ms + one.backward_device_ms > 0),
    parameters: value.tree.some((one) => one.parameters !== null),
  };
  // What holds many modules, such as a stage, marks them but opens nothing.
  const first = marked.size <= FEW ? [...marked][0] : undefined;
  useLayoutEffect(() => {
    if (first !== undefined) open.value = new Set([...open.value, ...waysTo(value.tree, first)]);
  }, [first, value]);
  if (!value.tree.length) return <NoModules />;
  const toggle = (row: TreeRow, to = !row.open): void => {
    const next = new Set(open.value);
    if (to) next.add(row.key);
    else next.delete(row.key);
    open.value = next;
  };
  const unfold = (row: TreeRow): void => {
    unfolded.value = new Set([...unfolded.value, row.key]);
    toggle(row, true);
  };
  return (
    <div class="pane-column">
      <div class="pane-tools">
        <span class="dim">
          by {EVIDENCE[value.evidence] ?? value.evidence} · {shows.device ? "" : "CPU time, "}
          {overSteps(value.steps)}
        </span>
      </div>
      <div class="table-frame" onKeyDown={(event) => walkTree(event, rows, toggle)}>
        <table class="table" role="treegrid" aria-label="Modules by cost">
          <thead>
            <Headings shows={shows} />
          </thead>
          <tbody>
            {rows.map((row) => (
              <Line
                key={row.key}
                row={row}
                shows={shows}
                share={costOf(row.node) / most}
                marked={row.node.modules.some((one) => marked.has(one))}
                onToggle={() => toggle(row)}
                onUnfold={() => unfold(row)}
                onChoose={() => choose(store, row.node)}
              />
            ))}
          </tbody>
        </table>
      </div>
    </div>
  );
}

function choose(store: Store, node: ModuleNode): void {
  const module = node.modules[0];
  if (module !== undefined) void store.choosePart({ module });
}

function Line(props: {
  row: TreeRow;
  shows: Shows;
  share: number;
  marked: boolean;
  onToggle: () => void;
  onUnfold: () => void;
  onChoose: () => void;
}): JSX.Element {
  const { row, shows } = props;
  const { node } = row;
  return (
    <tr
      tabIndex={0}
      data-module={node.path}
      class={props.marked ? "marked" : undefined}
      aria-level={row.depth + 1}
      aria-expanded={row.opens ? row.open : undefined}
      aria-selected={props.marked}
      onClick={props.onChoose}
    >
      <td>
        <span class="tree-name" style={{ paddingLeft: `${row.depth * 16}px` }}>
          <Twist row={row} onToggle={props.onToggle} />
          <span class={row.hottest ? "hottest" : undefined}>{node.name || node.class}</span>
          {node.count > 1 && <Copies node={node} onUnfold={props.onUnfold} />}
        </span>
      </td>
      <td class="dim minor">{node.class}</td>
      <td class="number">{node.calls ? count(node.calls) : "–"}</td>
      <Times cpu={node.forward_cpu_ms} device={shows.device && node.forward_device_ms} />
      {shows.backward && (
        <>
          <Times cpu={node.backward_cpu_ms} device={shows.device && node.backward_device_ms} />
          <Times cpu={cpuOf(node)} device={shows.device && deviceOf(node)} strong />
        </>
      )}
      <td class="bar-cell">
        <ShareBar share={props.share} kind={row.hottest ? "hot" : ""} />
      </td>
      {shows.parameters && (
        <td class="number">{node.parameters === null ? "–" : grouped(node.parameters)}</td>
      )}
    </tr>
  );
}

/** Which columns say anything: a CPU has no device, inference no backward. */
interface Shows {
  device: boolean;
  backward: boolean;
  parameters: boolean;
}

/** Each phase has a column for each side; without a device there is one side, and one row of names. */
function Headings({ shows }: { shows: Shows }): JSX.Element {
  const { device } = shows;
  const rows = device ? 2 : 1;
  const phases = shows.backward ? ["forward", "backward", "total"] : ["forward"];
  return (
    <>
      <tr>
        <th scope="col" rowSpan={rows}>
          module
        </th>
        <th scope="col" rowSpan={rows} class="minor">
          class
        </th>
        <th scope="col" rowSpan={rows} class="number">
          calls
        </th>
        {phases.map((one) => (
          <th key={one} scope={device ? "colgroup" : "col"} colSpan={rows} class="number">
            {one}
          </th>
        ))}
        <th scope="col" rowSpan={rows}>
          <span class="unseen">share</span>
        </th>
        {shows.parameters && (
          <th scope="col" rowSpan={rows} class="number">
            parameters
          </th>
        )}
      </tr>
      {device && (
        <tr class="second">
          {phases.flatMap((one) =>
            ["CPU", "device"].map((side) => (
              <th key={one + side} scope="col" class="number">
                {side}
              </th>
            )),
          )}
        </tr>
      )}
    </>
  );
}

function Times(props: { cpu: number; device: number | false; strong?: boolean }): JSX.Element {
  const kind = props.strong ? "number strong" : "number";
  return (
    <>
      <td class={kind}>{milliseconds(props.cpu)}</td>
      {props.device !== false && <td class={kind}>{milliseconds(props.device)}</td>}
    </>
  );
}

function Twist({ row, onToggle }: { row: TreeRow; onToggle: () => void }): JSX.Element {
  if (!row.opens) return <span class="twist" />;
  return (
    <button
      type="button"
      class="twist"
      tabIndex={-1}
      aria-label={`${row.open ? "Close" : "Open"} ${row.node.name || row.node.class}`}
      onClick={(event) => {
        event.stopPropagation();
        onToggle();
      }}
    >
      {row.open ? "▾" : "▸"}
    </button>
  );
}

/** How many copies a line stands for, and how much they differ; a click lists them. */
function Copies({ node, onUnfold }: { node: ModuleNode; onUnfold: () => void }): JSX.Element {
  const [least, most] = node.spread_ms;
  return (
    <button
      type="button"
      class="chip"
      tabIndex={-1}
      title={`${node.count} copies, each ${milliseconds(least)} to ${milliseconds(most)}: list them`}
      onClick={(event) => {
        event.stopPropagation();
        onUnfold();
      }}
    >
      ×{node.count} · {milliseconds(least)} – {milliseconds(most)}
    </button>
  );
}

function NoModules(): JSX.Element {
  return (
    <p class="nothing">
      This trace has no modules. Record with <code>stepscope run</code>, or give the model's tree:{" "}
      <code>--model model.json</code>.
    </p>
  );
}

function walkTree(
  event: KeyboardEvent,
  rows: TreeRow[],
  toggle: (row: TreeRow, to: boolean) => void,
): void {
  const line = (event.target as HTMLElement).closest<HTMLTableRowElement>("tbody tr");
  if (!line) return;
  const row = rows[line.sectionRowIndex];
  switch (event.key) {
    case "ArrowDown":
      (line.nextElementSibling as HTMLElement | null)?.focus();
      break;
    case "ArrowUp":
      (line.previousElementSibling as HTMLElement | null)?.focus();
      break;
    case "ArrowRight":
    case "ArrowLeft":
      if (row?.opens) toggle(row, event.key === "ArrowRight");
      break;
    case "Enter":
    case " ":
      if (event.target !== line) return; // a button inside it has the key
      line.click();
      break;
    default:
      return;
  }
  event.preventDefault();
  event.stopPropagation();
}
