import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import type { Modules, ModuleNode } from "../api/types";
import { count, grouped, milliseconds, percent } from "../base/format";
import { cpuOf, deviceOf, hottestOf, leavesOf, slowestLayer } from "../model/modules";
import { sum } from "../model/table/field";
import { perStore } from "../state/per_store";
import type { Store } from "../state/store";
import { keptTable } from "../state/tables";
import { WithAnswer } from "../widgets/answer";
import { numberColumn, shareText, textColumn, type Column } from "../widgets/table/column";
import { Table } from "../widgets/table/table";
import type { TableView } from "../widgets/table/use_table";
import { fileName } from "./file_name";
import { overSteps } from "./kernels/pane";
import type { Pane } from "./pane";

export const modulesOf = perStore((store) =>
  store.scoped((client, scope) => client.modules(scope)),
);

export const modules: Pane = {
  id: "modules",
  title: "Model",
  hint: "The model's modules with the cost of each, forward and backward",
  View: ({ store }) => (
    <WithAnswer answer={modulesOf(store)}>
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
  const unfolded = useSignal<ReadonlySet<string>>(new Set());
  const marked = store.marks.value.modules;
  const shows = useMemo(() => showsOf(value.tree), [value]);
  const unfold = (node: ModuleNode): void => {
    unfolded.value = new Set([...unfolded.value, node.path]);
  };
  const columns = useMemo(() => columnsOf(value, shows, unfold), [value]);
  const views = useMemo(() => viewsOf(value.tree, unfolded.value), [value, unfolded.value]);
  // What holds many modules, such as a stage, marks them but opens nothing.
  const first = marked.size <= FEW ? [...marked][0] : undefined;
  return (
    <div class="pane-column">
      <SlowestLayers store={store} tree={value.tree} shows={shows} />
      <Table<ModuleNode>
        caption="Modules by cost"
        kept={keptTable(store, "modules")}
        file={fileName(store, "modules")}
        columns={columns}
        rows={value.tree}
        keyOf={keyOf}
        views={views}
        marked={(node) => node.modules.some((one) => marked.has(one))}
        show={first === undefined ? null : { key: first, is: (node) => node.modules.includes(first) }}
        onChoose={(node) => choose(store, node)}
        tools={
          <span class="dim">
            by {EVIDENCE[value.evidence] ?? value.evidence} · {shows.device ? "" : "CPU time, "}
            {overSteps(value.steps)}
            {restText(value, shows)}
          </span>
        }
      />
    </div>
  ); // prettier-ignore
}

const LEAST_REST = 0.01;

/** How much of a step belongs to no module; empty if hardly anything does. */
function restText(value: Modules, shows: Shows): string {
  const rest = shows.longer === deviceOf ? value.rest_device_ms : value.rest_cpu_ms;
  const share = rest / (value.step_ms || 1);
  return share < LEAST_REST ? "" : ` · no module: ${percent(share)} of the step`;
}

const keyOf = (node: ModuleNode): string => node.path || node.name;

function choose(store: Store, node: ModuleNode): void {
  const module = node.modules[0];
  if (module !== undefined) void store.choosePart({ module });
}

/** Which layer takes longest in each phase, on the side that takes longer in the whole model. */
function SlowestLayers(props: {
  store: Store;
  tree: ModuleNode[];
  shows: Shows;
}): JSX.Element | null {
  const { store, tree, shows } = props;
  const phases = shows.longer === deviceOf ? DEVICE_PHASES : CPU_PHASES;
  const slowest = phases.flatMap(([phase, cost]) => {
    const node = slowestLayer(tree, cost);
    return node ? [{ phase, node, ms: cost(node) }] : [];
  });
  if (!slowest.length) return null;
  return (
    <p class="slowest-layers">
      Slowest layer
      {slowest.map(({ phase, node, ms }) => (
        <span key={phase} data-phase={phase}>
          {phase}{" "}
          <button
            type="button"
            class="chip"
            title={`${node.kind}: go to its longest operation`}
            onClick={() => choose(store, node)}
          >
            <bdi>{node.path || node.name}</bdi>
          </button>{" "}
          {milliseconds(ms)}
        </span>
      ))}
      <span class="dim">{shows.longer === deviceOf ? "device" : "CPU"} time per step</span>
    </p>
  );
}

/** A tree in which the copies of a folded block may take the place of what is in each. */
function viewsOf(tree: ModuleNode[], unfolded: ReadonlySet<string>): TableView<ModuleNode>[] {
  const leaves = leavesOf(tree);
  const sorting = { column: "share", down: true };
  return [
    {
      id: "tree",
      title: "Tree",
      hint: "Modules within modules, in their order in the model",
      open: true,
      childrenOf: (node) =>
        node.copies.length && (unfolded.has(node.path) || !node.children.length)
          ? node.copies
          : node.children,
    },
    {
      id: "flat",
      title: "Flat",
      hint: "Leaf modules, and what the others do themselves, ranked by time",
      rows: leaves,
      sorting,
    },
    {
      id: "class",
      title: "By class",
      hint: "Totals by class",
      rows: leaves,
      groupBy: (node) => node.kind,
      sorting,
    },
  ];
}

type Cost = (node: ModuleNode) => number;

const DEVICE_PHASES: [string, Cost][] = [
  ["forward", (node) => node.forward_device_ms],
  ["backward", (node) => node.backward_device_ms],
  ["outside of training", (node) => node.outside_device_ms],
];
const CPU_PHASES: [string, Cost][] = [
  ["forward", (node) => node.forward_cpu_ms],
  ["backward", (node) => node.backward_cpu_ms],
  ["outside of training", (node) => node.outside_cpu_ms],
];

/** Which columns say anything: a CPU has no device, inference no backward. */
interface Shows {
  device: boolean;
  backward: boolean;
  outside: boolean;
  parameters: boolean;
  /** The time of the side that takes longer in the whole model. */
  longer: Cost;
}

function showsOf(tree: readonly ModuleNode[]): Shows {
  const total = (of: Cost): number => tree.reduce((ms, one) => ms + of(one), 0);
  return {
    longer: total(deviceOf) >= total(cpuOf) ? deviceOf : cpuOf,
    device: tree.some((one) => deviceOf(one) > 0),
    backward: tree.some((one) => one.backward_cpu_ms + one.backward_device_ms > 0),
    outside: tree.some((one) => one.outside_cpu_ms + one.outside_device_ms > 0),
    parameters: tree.some((one) => one.parameters !== null),
  };
}

/** Each phase has a column for each side; without a device there is one side. */
function columnsOf(
  value: Modules,
  shows: Shows,
  unfold: (node: ModuleNode) => void,
): Column<ModuleNode>[] {
  const hottest = hottestOf(value.tree);
  const share: Cost = (node) => shows.longer(node) / ((value.step_ms || 1) * value.at_once);
  const phases: [string, Cost, Cost][] = [
    ["forward", (node) => node.forward_cpu_ms, (node) => node.forward_device_ms],
    ["backward", (node) => node.backward_cpu_ms, (node) => node.backward_device_ms],
    ["outside", (node) => node.outside_cpu_ms, (node) => node.outside_device_ms],
    ["total", cpuOf, deviceOf],
  ];
  const shown = phases.filter(
    ([name]) =>
      name === "forward" ||
      (name === "backward" && shows.backward) ||
      (name === "outside" && shows.outside) ||
      (name === "total" && (shows.backward || shows.outside)),
  );
  return [
    {
      id: "module",
      title: "module",
      value: (node) => node.name || node.kind,
      full: (node) => node.path || node.name,
      cell: (node, open) => (
        <Name
          node={node}
          hottest={hottest.has(node)}
          onUnfold={() => {
            unfold(node);
            open();
          }}
        />
      ),
    },
    textColumn("class", "class", (node) => node.kind, { minor: true }),
    numberColumn("calls", "calls", (node) => node.calls || null, count, {
      total: sum((node) => node.calls),
    }),
    ...shown.flatMap(([name, cpu, device]) => phaseColumns(name, cpu, shows.device ? device : null)),
    numberColumn("share", "of step", share, shareText, {
      hint: `${shows.longer === deviceOf ? "device" : "CPU"} time, of the step's length`,
      total: sum(share),
    }),
    ...(shows.parameters
      ? [
          numberColumn<ModuleNode>("parameters", "parameters", (node) => node.parameters, grouped, {
            total: sum((node) => node.parameters),
          }),
        ]
      : []),
  ]; // prettier-ignore
}

function phaseColumns(name: string, cpu: Cost, device: Cost | null): Column<ModuleNode>[] {
  const strong = name === "total";
  const column = (side: string, title: string, value: Cost): Column<ModuleNode> =>
    numberColumn(`${name}_${side}`, title, value, milliseconds, {
      unit: "ms",
      strong,
      total: sum(value),
      ...(device && { over: name }),
    });
  return device
    ? [column("cpu", "CPU", cpu), column("device", "device", device)]
    : [column("cpu", name, cpu)];
}

function Name(props: { node: ModuleNode; hottest: boolean; onUnfold: () => void }): JSX.Element {
  const { node } = props;
  return (
    <>
      <span class={props.hottest ? "hottest" : undefined}>{node.name || node.kind}</span>
      {node.count > 1 && <Copies node={node} onUnfold={props.onUnfold} />}
    </>
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
