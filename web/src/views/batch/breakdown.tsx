import type { JSX } from "preact";
import type { CostNode } from "../../api/batch_types";
import { bytes, milliseconds, percent, words } from "../../base/format";
import { amount, keyOf, parts, type Metric } from "../../model/costs";
import type { BatchStore } from "../../state/batch";

const METRICS = ["time", "memory"] as const;

/** Where the time or the memory of a step goes: one level of the model, breadcrumbs above it. */
export function BreakdownView({ store }: { store: BatchStore }): JSX.Element {
  const nodes = store.nodes.value;
  const here = nodes[nodes.length - 1];
  if (!here) return <></>;
  const metric = store.metric.value;
  const inside = parts(here, metric);
  const whole = amount(nodes[0]!, metric);
  return (
    <section class="breakdown" aria-label="Breakdown">
      <div class="breakdown-head">
        <h2 class="pane-heading">
          Where it goes, at batch size {store.profile.value?.breakdown?.batch}
        </h2>
        <Switch store={store} />
      </div>
      <Breadcrumbs store={store} nodes={nodes} />
      <LinkedBars store={store} here={here} />
      {metric === "time" && <Directions />}
      {inside.length === 0 && <p class="nothing">No further breakdown.</p>}
      <ul>
        {inside.map((node) => (
          <li key={keyOf(node)}>
            <Row store={store} node={node} metric={metric} whole={whole} />
          </li>
        ))}
      </ul>
    </section>
  );
}

function Switch({ store }: { store: BatchStore }): JSX.Element {
  return (
    <div role="group" aria-label="What is broken down">
      {METRICS.map((metric) => (
        <button
          key={metric}
          type="button"
          aria-pressed={store.metric.value === metric}
          onClick={() => (store.metric.value = metric)}
        >
          {metric}
        </button>
      ))}
    </div>
  );
}

/** The time and the memory of one level, each in one bar; a part is lit in both. */
function LinkedBars({ store, here }: { store: BatchStore; here: CostNode }): JSX.Element {
  return (
    <div class="linked-bars" aria-hidden="true">
      {METRICS.filter((metric) => amount(here, metric) > 0).map((metric) => (
        <div key={metric}>
          <span class="dim">{metric}</span>
          <span class="linked-bar" data-metric={metric}>
            {parts(here, metric).map((node) => (
              <Part key={keyOf(node)} store={store} node={node} metric={metric} of={here} />
            ))}
          </span>
        </div>
      ))}
    </div>
  );
}

interface PartProps {
  store: BatchStore;
  node: CostNode;
  metric: Metric;
  of: CostNode;
}

function Part({ store, node, metric, of }: PartProps): JSX.Element {
  const share = amount(node, metric) / amount(of, metric);
  return (
    <span
      class={store.pointed.value === keyOf(node) ? "lit" : ""}
      style={{ width: `${share * 100}%` }}
      title={`${words(node.name)}: ${percent(share)} of the ${metric}`}
      onClick={() => store.reveal(node)}
      onDblClick={() => parts(node, metric).length > 0 && store.descend(node)}
      onPointerEnter={() => store.point(node)}
      onPointerLeave={() => store.point(null)}
    />
  );
}

function Directions(): JSX.Element {
  return (
    <p class="memory-legend dim">
      {["forward", "backward", "neither"].map((one) => (
        <span key={one}>
          <span class={`swatch c-${one}`} aria-hidden="true" /> {one}
        </span>
      ))}
    </p>
  );
}

function Breadcrumbs({ store, nodes }: { store: BatchStore; nodes: CostNode[] }): JSX.Element {
  return (
    <nav class="crumbs" aria-label="Breadcrumbs">
      {nodes.map((node, place) => (
        <span key={keyOf(node)}>
          {place > 0 && <span class="dim"> › </span>}
          {place < nodes.length - 1 ? (
            <button type="button" class="link" onClick={() => store.ascend(place)}>
              {words(node.name)}
            </button>
          ) : (
            <strong>{words(node.name)}</strong>
          )}
        </span>
      ))}
    </nav>
  );
}

interface RowProps {
  store: BatchStore;
  node: CostNode;
  metric: Metric;
  whole: number;
}

/** A click opens the line, a double click or Enter what is inside. */
function Row({ store, node, metric, whole }: RowProps): JSX.Element {
  const value = amount(node, metric);
  const descends = parts(node, metric).length > 0;
  const cursor = store.cursor.value;
  const here = cursor && cursor.file === node.file && cursor.line === node.line;
  const lit = store.pointed.value === keyOf(node);
  const acts = descends || Boolean(node.file && node.line);
  const press = (event: KeyboardEvent) => {
    if (event.key === "Enter" && descends) store.descend(node);
    else if (event.key === "Enter" || event.key === " ") store.reveal(node);
    else return;
    event.preventDefault();
  };
  return (
    <div
      class={`cost${here ? " at-cursor" : ""}${descends ? " descends" : ""}${lit ? " lit" : ""}`}
      role={acts ? "button" : undefined}
      tabIndex={acts ? 0 : undefined}
      aria-current={here ? "location" : undefined}
      onClick={() => store.reveal(node)}
      onDblClick={() => descends && store.descend(node)}
      onKeyDown={press}
      onPointerEnter={() => store.point(node)}
      onPointerLeave={() => store.point(null)}
      title={hint(node, descends)}
    >
      <span class="cost-name">
        {words(node.name)}
        {node.class && <span class="dim"> {node.class}</span>}
        {node.file && <span class="dim place"> {place(node)}</span>}
      </span>
      <span class="number">{metric === "time" ? milliseconds(value) : bytes(value)}</span>
      <span class="number dim">{percent(value / (whole || 1))}</span>
      <span class="cost-bar" aria-hidden="true">
        <Bar node={node} metric={metric} whole={whole} />
      </span>
    </div>
  );
}

function Bar({
  node,
  metric,
  whole,
}: {
  node: CostNode;
  metric: Metric;
  whole: number;
}): JSX.Element {
  const width = (size: number) => ({ width: `${(size / (whole || 1)) * 100}%` });
  if (metric === "memory") {
    return (
      <>
        {KINDS.map((kind) => (
          <span key={kind} class={`c-memory-${kind}`} style={width(node[`${kind}_bytes`])} />
        ))}
      </>
    );
  }
  if (node.kind === "stage") return <span class="c-neither" style={width(node.ms)} />;
  return (
    <>
      <span class="c-forward" style={width(node.forward_ms)} />
      <span class="c-backward" style={width(node.backward_ms)} />
    </>
  );
}

export const KINDS = [
  "weights",
  "gradients",
  "optimizer_state",
  "activations",
  "buffers",
  "inputs",
  "temporaries",
  "untracked",
] as const;

function place(node: CostNode): string {
  return `${node.file!.split("/").pop()}:${node.line}`;
}

function hint(node: CostNode, descends: boolean): string {
  const times = `forward ${milliseconds(node.forward_ms)}, backward ${milliseconds(node.backward_ms)}`;
  const keys = [
    node.file ? "click or space: its line" : "",
    descends ? "double click or Enter: what is inside" : "",
  ];
  return [times, keys.filter(Boolean).join(", ")].filter(Boolean).join("\n");
}
