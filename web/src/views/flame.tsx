import { computed, type ReadonlySignal } from "@preact/signals";
import type { JSX } from "preact";
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Flame, NodeFinding, TraceEntry } from "../api/types";
import { bytes, duration, grouped, percent, plural, signedPercent } from "../base/format";
import { findingOfBoxes, FlameLayout, ROW_PX } from "../model/flame";
import {
  boxAt,
  drawFlame,
  drawOutlines,
  flameHeight,
  readFlameColors,
  type FlameScene,
} from "../render/flame";
import { perStore } from "../state/per_store";
import type { Store } from "../state/store";
import { theme } from "../state/theme";
import { showLine } from "./source";
import { NO_FLAME, type FlameView, type Zoom } from "../state/url";
import { WithAnswer } from "../widgets/answer";
import { FlameLegend } from "./flame_legend";
import type { Pane } from "./pane";
import { SavePicture } from "./save_picture";
import { FactList } from "../widgets/fact_list";

/** Of the callers around all there is, so many rows are in sight at first. */
const SEEN_ABOVE = 3;

/** What the view says, as far as it means anything here: nodes are of one tree, a pair of traces. */
const choiceOf = perStore((store) => {
  const said = computed(() => store.view.value.flame);
  const open = computed(() => store.traces.value?.traces ?? []);
  return computed((): FlameView => {
    const { zoom, against } = said.value;
    const other = open.value.some((one) => one.id === against && isRead(one));
    return {
      ...said.value,
      zoom: zoom?.tree === treeOf(store) ? zoom : null,
      against: other && against !== store.client.value?.trace ? against : "",
    };
  });
});

/** Whether a trace can be compared with: it is read, or was compared in advance. */
function isRead({ state }: TraceEntry): boolean {
  return state === "ready" || state === "compared";
}

/** Names the tree on screen: of a rank, or of a step of it; empty for that of a whole recording. */
function treeOf(store: Store): string {
  const scope = store.scope.value;
  if (!scope) return "";
  return scope.step === undefined ? `${scope.rank}` : `${scope.rank}.${scope.step}`;
}

function choose(store: Store, change: Partial<FlameView>): void {
  store.set({ flame: { ...store.view.value.flame, ...change } });
}

const flameOf = perStore((store) => {
  const choice = choiceOf(store);
  const start = computed(() => choice.value.zoom?.start);
  const asked = partsOf(choice);
  return store.inScope((client, scope) =>
    client.ask<Flame>("contexts", {
      ...scope,
      by: asked.by.value,
      up: asked.up.value,
      against: asked.against.value,
      start: (store.host.live && start.value) || undefined,
    }),
  );
});

/** Each by itself, so that a search or a zoom within the boxes asks nothing again. */
function partsOf(choice: ReadonlySignal<FlameView>) {
  return {
    by: computed(() => choice.value.by),
    up: computed(() => choice.value.up),
    against: computed(() => choice.value.against),
  };
}

/** Findings take as long as the analyzer does, so they come after the boxes. */
const findingsOf = perStore((store) => {
  const { by, up, against } = partsOf(choiceOf(store));
  return store.inScope((client, scope) => {
    if (!flameOf(store).value.value || against.value) return null;
    const asked = { ...scope, by: by.value, up: up.value };
    return client.ask<{ findings: NodeFinding[] }>("context_findings", asked);
  });
});

export const flame: Pane = {
  id: "flame",
  title: "Flame graph",
  hint: "Time by calling context: Python line, module, operator, kernel",
  View: ({ store }) => (
    <>
      <WithAnswer answer={flameOf(store)}>
        {(value) => <Graph store={store} value={value} />}
      </WithAnswer>
      {flameOf(store).value.error && (
        <p class="nothing">
          <button type="button" onClick={() => store.set({ flame: NO_FLAME })}>
            Show the usual flame graph
          </button>
        </p>
      )}
    </>
  ),
};

function Graph({ store, value }: { store: Store; value: Flame }): JSX.Element {
  const choice = choiceOf(store).value;
  const layout = useMemo(() => new FlameLayout(value), [value]);
  const [picked, pick] = useState({ layout, box: -1 });
  const chosen = picked.layout === layout ? picked.box : -1; // boxes of another have other numbers
  const setChosen = (box: number): void => pick({ layout, box });
  const findings = findingsOf(store).value.value?.findings ?? [];
  const found = useMemo(() => layout.find(choice.find), [layout, choice.find]);
  const at = layout.boxOf(choice.zoom?.node ?? value.start);
  const goTo = (start: number, node: number): void => {
    const zoom: Zoom = { tree: treeOf(store), start, node };
    choose(store, { zoom: start || node ? zoom : null });
  };
  const focus = (box: number): void => goTo(value.start, value.boxes.node[box]!);
  const zoom = (box: number): void => {
    setChosen(box);
    const node = value.boxes.node[box]!;
    const caller = value.boxes.parent[box]!;
    if (!store.host.live) return focus(node < 0 ? caller : box);
    // What is too small to be told is told once its caller is the first box.
    const whole = node < 0 ? value.boxes.node[caller]! : node;
    if (node < 0 || (box > 0 && layout.hides(box))) goTo(whole, whole);
    else focus(box);
  };
  return (
    <div class="pane-column">
      <Tools store={store} value={value} found={found ? { count: found.count, share: found.total / (value.total || 1) } : null} />
      <Path layout={layout} focus={at} onStart={(node) => goTo(node, node)} onFocus={focus} />
      <Canvas layout={layout} focus={at} chosen={chosen} found={found} findings={findings} onZoom={zoom} onChoose={setChosen} />
      <Chosen store={store} layout={layout} box={chosen >= 0 ? chosen : at} findings={findings} />
    </div>
  ); // prettier-ignore
}

// -- above the graph

function Tools(props: {
  store: Store;
  value: Flame;
  found: { count: number; share: number } | null;
}): JSX.Element {
  const { store, value, found } = props;
  const choice = choiceOf(store).value;
  const others = (store.traces.value?.traces ?? []).filter(
    (one) => one.id !== store.client.value?.trace && isRead(one),
  );
  // Another measure, direction or pair has other nodes.
  const restart = (change: Partial<FlameView>): void => choose(store, { ...change, zoom: null });
  // The root is none of the contexts, as on the command line.
  return (
    <div class="pane-tools flame-tools">
      <label>
        By{" "}
        <select
          aria-label="Measure"
          value={choice.by || value.by}
          onChange={(event) => restart({ by: event.currentTarget.value })}
        >
          {value.measures.map((one) => (
            <option key={one.name} value={one.name}>
              {one.meaning}
            </option>
          ))}
        </select>
      </label>
      <label>
        <input
          type="checkbox"
          checked={choice.up}
          onChange={(event) => restart({ up: event.currentTarget.checked })}
        />{" "}
        Bottom up
      </label>
      {others.length > 0 && (
        <label>
          Compare with{" "}
          <select
            aria-label="Compare with"
            value={choice.against}
            onChange={(event) => restart({ against: event.currentTarget.value })}
          >
            <option value="">nothing</option>
            {others.map((one) => (
              <option key={one.id} value={one.id}>
                {one.name}
              </option>
            ))}
          </select>
        </label>
      )}
      <input
        type="search"
        placeholder="Search names"
        aria-label="Search names in the flame graph"
        value={choice.find}
        onInput={(event) => choose(store, { find: event.currentTarget.value })}
      />
      <span class="dim" role="status">
        {found
          ? `${plural(found.count, "box", "boxes")}, ${percent(found.share)}`
          : `${grouped(value.nodes - 1)} contexts, ${figure(value.total, value.unit)} ${over(store)}`}
        {value.total_before !== null &&
          ` (before: ${figure(value.total_before, value.unit)}${store.stepless.value ? "" : " in as many"})`}
      </span>
      <FlameLegend value={value} findings={findingsOf(store).value.value?.findings ?? []} />
      <SavePicture store={store} of="flame graph" parts={[".flame-legend", ".flame-room"]} />
    </div>
  );
}

/** What is not in the tree, or not where one would look for it. */
function Notes({ notes }: { notes: readonly string[] }): JSX.Element | null {
  if (!notes.length) return null;
  return (
    <details class="flame-notes">
      <summary>{plural(notes.length, "note")}</summary>
      <ul>
        {notes.map((one) => (
          <li key={one}>{one}</li>
        ))}
      </ul>
    </details>
  );
}

/** What figures add up, as those of the other panes are means a step. */
function over(store: Store): string {
  const { numbers = [], warm_up } = store.facts.value.value?.facts?.steps ?? {};
  if (store.stepless.value) return "in the whole recording";
  if (numbers.length === 1) return `in step ${numbers[0]}`;
  return `in ${plural(numbers.length + (warm_up ? 1 : 0), "step")}`;
}

/** The way to what fills the width; each part zooms out to it. */
function Path(props: {
  layout: FlameLayout;
  focus: number;
  onStart: (node: number) => void;
  onFocus: (box: number) => void;
}): JSX.Element | null {
  const { layout, focus } = props;
  const above = layout.wire.path.slice(0, -1);
  const inside = layout.path(focus);
  if (!above.length && inside.length < 2) return null;
  return (
    <nav class="flame-path" aria-label="Zoomed to">
      {above.map((one) => (
        <button type="button" key={`n${one.node}`} onClick={() => props.onStart(one.node)}>
          {one.name}
        </button>
      ))}
      {inside.map((box) => (
        <button type="button" key={`b${box}`} onClick={() => props.onFocus(box)}>
          {layout.name(box)}
        </button>
      ))}
    </nav>
  );
}

// -- the graph

interface CanvasProps {
  layout: FlameLayout;
  focus: number;
  chosen: number;
  found: FlameScene["found"];
  findings: readonly NodeFinding[];
  onZoom: (box: number) => void;
  onChoose: (box: number) => void;
}

function Canvas(props: CanvasProps): JSX.Element {
  const { layout, focus, chosen, found, findings } = props;
  const frame = useRef<HTMLDivElement>(null);
  const base = useRef<HTMLCanvasElement>(null);
  const overlay = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  const [hovered, setHovered] = useState<{ box: number; x: number; y: number } | null>(null);
  const shade = theme.value;
  const colors = useMemo(() => readFlameColors(document.documentElement), [shade]);
  const finding = useMemo(() => findingOfBoxes(layout, findings), [layout, findings]);
  const severities = useMemo(() => findings.map((one) => one.severity), [findings]);
  const scene: FlameScene = useMemo(
    () => ({ layout, focus, width, found, finding, severities, colors }),
    [layout, focus, width, found, finding, severities, colors],
  );
  useLayoutEffect(() => {
    const observer = new ResizeObserver(() => setWidth(Math.floor(frame.current!.clientWidth)));
    observer.observe(frame.current!);
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(() => {
    setHovered(null); // the same number is another box now
    frame.current!.scrollTop = Math.max((layout.forks() - SEEN_ABOVE) * ROW_PX, 0);
  }, [layout]);
  useLayoutEffect(() => {
    if (!width) return;
    drawFlame(base.current!, scene);
    performance.mark("flame drawn");
  }, [scene]);
  useLayoutEffect(() => {
    if (width) drawOutlines(overlay.current!, scene, hovered?.box ?? -1, chosen);
  }, [scene, hovered?.box, chosen]);
  const meet = (event: MouseEvent): number => boxAt(scene, event.offsetX, event.offsetY);
  const size = { width: `${width}px`, height: `${flameHeight(layout)}px` };
  return (
    <div
      class="flame-frame"
      ref={frame}
      tabIndex={0}
      data-boxes={layout.size}
      role="group"
      aria-label="Boxes: arrow keys walk them, Enter zooms to one, Escape zooms out"
      onKeyDown={(event) => pressBox(event, props, frame.current!)}
    >
      <div class="flame-room" style={size}>
        <canvas
          ref={base}
          role="img"
          style={size}
          aria-label={`${layout.wire.meaning} by calling context: ${summary(layout)}`}
        />
        <canvas
          ref={overlay}
          aria-hidden="true"
          class={hovered ? "pointing" : ""}
          style={size}
          onPointerMove={(event) => {
            const box = meet(event);
            setHovered(box < 0 ? null : { box, x: event.clientX, y: event.clientY });
          }}
          onPointerLeave={() => setHovered(null)}
          onClick={(event) => {
            const box = meet(event);
            if (box >= 0) props.onZoom(box);
          }}
        />
      </div>
      {hovered && hovered.box < layout.size && (
        <Hint layout={layout} findings={findings} finding={finding} {...hovered} />
      )}
    </div>
  );
}

/** Arrow keys choose a box, Enter zooms to it, Escape goes to the caller of what fills the width. */
function pressBox(event: KeyboardEvent, props: CanvasProps, frame: HTMLElement): void {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const { layout, focus, chosen } = props;
  const at = chosen >= 0 ? chosen : focus;
  if (event.key.startsWith("Arrow")) {
    const next = layout.neighbor(at, event.key);
    props.onChoose(next);
    const top = layout.depth[next]! * ROW_PX;
    const low = top + 2 * ROW_PX - frame.clientHeight;
    frame.scrollTop = Math.max(Math.min(frame.scrollTop, top), low);
  } else if (event.key === "Enter") props.onZoom(at);
  else if (event.key === "Escape" || event.key === "Backspace") {
    const above = layout.wire.boxes.parent[focus]!;
    if (above < 0) return;
    props.onZoom(above);
  } else return;
  event.preventDefault();
  event.stopPropagation();
}

/** The hot path in words, for a screen reader. */
function summary(layout: FlameLayout): string {
  const hot = layout.wire.boxes.hot;
  const names = hot.flatMap((one, box) => (one ? [layout.name(box)] : []));
  return `most of it in ${names.join(", ")}`;
}

function Hint(props: {
  layout: FlameLayout;
  findings: readonly NodeFinding[];
  finding: Int32Array;
  box: number;
  x: number;
  y: number;
}): JSX.Element {
  const place = useRef<HTMLDivElement>(null);
  const { layout, box, x, y } = props;
  useLayoutEffect(() => {
    const { offsetWidth, offsetHeight, style } = place.current!;
    const left = Math.max(Math.min(x + 14, innerWidth - offsetWidth - 8), 8);
    const below = y + 18 + offsetHeight < innerHeight;
    style.transform = `translate(${left}px, ${below ? y + 18 : y - offsetHeight - 12}px)`;
  });
  const finding = props.findings[props.finding[box]!];
  return (
    <div class="tooltip" ref={place} role="presentation">
      <div class="tooltip-name">{layout.name(box)}</div>
      <FactList facts={facts(layout, box)} />
      {finding && <p class={`flame-finding severity-${finding.severity}`}>{finding.what}</p>}
    </div>
  );
}

// -- below the graph

/** What is chosen, with the way to its source line and to the timeline. */
function Chosen(props: {
  store: Store;
  layout: FlameLayout;
  box: number;
  findings: readonly NodeFinding[];
}): JSX.Element {
  const { store, layout, box, findings } = props;
  const source = layout.source(box);
  const node = layout.wire.boxes.node[box]!;
  const told = findings.filter((one) => one.nodes.includes(node));
  return (
    <div class="flame-chosen" aria-live="polite">
      <strong title={layout.name(box)}>{layout.name(box)}</strong>
      {facts(layout, box).map(([name, value]) => (
        <span key={name}>
          <span class="dim">{name}</span> {value}
        </span>
      ))}
      {source && (
        <button type="button" class="chip" onClick={() => showLine(store, source)}>
          {source.file.split(/[\\/]/).at(-1)}:{source.line}
        </button>
      )}
      {layout.kind(box) === "kernel" && (
        <button
          type="button"
          class="chip"
          onClick={() => void store.choosePart({ kernel: layout.name(box) })}
        >
          in the timeline
        </button>
      )}
      {told.map((one) => (
        <span key={one.id} class={`flame-finding severity-${one.severity}`} title={one.advice}>
          {one.what}
        </span>
      ))}
      <Notes notes={layout.wire.notes} />
    </div>
  );
}

function facts(layout: FlameLayout, box: number): [string, string][] {
  const { wire } = layout;
  const { value, own, count, before, hidden } = wire.boxes;
  const whole = wire.total || 1;
  const rows: [string, string][] = [
    [wire.meaning, `${figure(value[box]!, wire.unit)} · ${percent(value[box]! / whole)}`],
  ];
  if (own[box]! > 0) rows.push(["own", figure(own[box]!, wire.unit)]);
  if (before) {
    const change = value[box]! - before[box]!;
    const part = before[box]! ? ` (${signedPercent(change / before[box]!)})` : ", new";
    rows.push([
      "change",
      `${change >= 0 ? "+" : "−"}${figure(Math.abs(change), wire.unit)}${part}`,
    ]);
  }
  if (count[box]! > 0) rows.push(["count", grouped(count[box]!)]);
  if (hidden[box]! > 0) rows.push(["contexts", grouped(hidden[box]!)]);
  rows.push(["kind", layout.kind(box)]);
  return rows;
}

function figure(value: number, unit: string): string {
  return unit === "ns" ? duration(value) : unit === "B" ? bytes(value) : grouped(value);
}
