import { useSignalEffect } from "@preact/signals";
import type { JSX } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import { duration, plural } from "../../base/format";
import { barAt } from "../../model/hit";
import { labelAt, rowAt, type Met } from "../../model/layout";
import { timesOf, type Level, type Row } from "../../model/level";
import { shortNameOf, sideOf } from "../../model/tracks";
import { CanvasRenderer } from "../../render/canvas2d";
import type { Scene } from "../../render/renderer";
import type { Store } from "../../state/store";
import { openedIn } from "./lines";
import { gutter, hover } from "./scene";

/** How far a pointer may miss a thin bar, px. */
const SLACK_PX = 3;
/** How long a pointer stays before it counts as resting. */
const REST_MS = 60;
let resting = 0;

export interface LevelProps {
  store: Store;
  level: Level;
  depth: number;
  /** As it is laid out. */
  scene: Scene;
}

/** One level: its title, the names of its rows, and two canvases, bars below outlines. */
export function LevelView(props: LevelProps): JSX.Element {
  const { store, level, depth, scene } = props;
  const base = useRef<HTMLCanvasElement>(null);
  const overlay = useRef<HTMLCanvasElement>(null);
  const renderer = useRef<CanvasRenderer | null>(null);
  const place = store.place.value;
  const chosen = place ? (place.level === level ? place.index : -1) : holderIn(level, store);
  const { width, height, strip } = scene.layout;

  useLayoutEffect(() => {
    renderer.current ??= new CanvasRenderer(base.current!, overlay.current!);
    renderer.current.drawBase(scene);
    performance.mark("level drawn", { detail: { path: level.path } });
  }, [scene]);

  const highlight = (): void => {
    const hovered = hover.value?.level === level ? hover.value.operation : -1;
    renderer.current?.drawOverlay(scene, { hovered, chosen });
  };
  useLayoutEffect(highlight, [scene, chosen]);
  const draw = useRef(highlight);
  draw.current = highlight;
  useSignalEffect(() => {
    void hover.value;
    draw.current();
  });

  const meet = (event: MouseEvent): Met | null => met(scene, event);
  return (
    <div class={`level ${strip ? "strip" : ""}`} data-level={level.path} data-depth={depth}>
      <LevelTitle store={store} level={level} strip={strip} />
      <div class="level-rows" style={{ height: `${height}px` }}>
        {!strip &&
          scene.layout.rows.map(({ row, top }) => (
            <RowName key={row.key} row={row} top={top} device={deviceChip(store)} />
          ))}
        <div
          class={`level-bars ${hover.value?.level === level ? "pointing" : ""}`}
          style={{
            left: strip ? 0 : `${gutter.value}px`,
            width: `${width}px`,
            height: `${height}px`,
          }}
          onPointerMove={(event) => {
            const found = meet(event);
            point(level, found, event);
            clearTimeout(resting);
            resting = window.setTimeout(() => askAhead(store, level, found), REST_MS);
          }}
          onPointerLeave={() => {
            clearTimeout(resting);
            hover.value = null;
          }}
          onPointerDown={(event) => askAhead(store, level, meet(event))}
          onClick={(event) => {
            if (event.detail > 1) return; // of a double click, whose first opened what it met
            const found = meet(event);
            if (found) activate(store, level, found.operation);
          }}
        >
          <canvas
            ref={base}
            role="img"
            aria-label={`${level.title}: ${plural(level.size, "operation")} in ${duration(level.length)}`}
          />
          <canvas ref={overlay} aria-hidden="true" />
        </div>
      </div>
    </div>
  );
}

/** The operation of the lowest level that holds the chosen one, where no level lists that itself. */
function holderIn(level: Level, store: Store): number {
  const { chosen, path } = store.view.value;
  if (level.path !== path || !chosen || chosen === path) return -1;
  return openedIn(level, chosen);
}

/** What the pointer rests on, or presses, is asked for before it is clicked. */
function askAhead(store: Store, level: Level, found: Met | null): void {
  if (!found) return;
  const { opens, path } = level.operation(found.operation);
  if (opens) store.askAhead(path);
}

/** A click chooses an operation and opens it, where anything is inside. */
export function activate(store: Store, level: Level, operation: number): void {
  const one = level.operation(operation);
  if (one.opens) store.open(one.path);
  else if (level.path === store.view.value.path) store.choose(one.path);
  else store.open(level.path, one.path);
}

function met(scene: Scene, event: MouseEvent): Met | null {
  const { layout } = scene;
  const [x, y] = [event.offsetX, event.offsetY];
  const number = rowAt(layout, y);
  if (number < 0) return labelAt(layout, x, y);
  const { row } = layout.rows[number]!;
  const bar = barAt(row, layout.from + x / layout.scale, SLACK_PX / layout.scale);
  return bar < 0 ? null : { row: number, bar, operation: row.operation[bar]! };
}

function point(level: Level, found: Met | null, event: PointerEvent): void {
  const now = hover.value;
  if (!found) hover.value = null;
  else if (now?.level !== level || now.operation !== found.operation || now.x !== event.clientX) {
    hover.value = { level, operation: found.operation, x: event.clientX, y: event.clientY };
  }
}

/** Before the rows of a device: what it is, or where that is not known the word that fits all. */
export function deviceChip(store: Store): string {
  const name = store.overview.value.value?.facts?.devices[0]?.name;
  return !name || /mtia|tpu|npu/i.test(name) ? "DEVICE" : "GPU";
}

function RowName({ row, top, device }: { row: Row; top: number; device: string }): JSX.Element {
  const side = sideOf(row.kind === "communication" ? row.kind : row.side, row.device, device);
  return (
    <div
      class="row-name"
      style={{ top: `${top}px`, width: `${gutter.value - 4}px` }}
      title={row.earlier ? `${row.name}: drawn ${duration(row.earlier)} earlier` : row.name}
      data-side={row.side}
    >
      <span class="side">{side}</span>
      <span class="row-which">
        {row.earlier > 0 && "~ "}
        {row.kind === "rank" ? `rank ${row.rank}` : shortNameOf(row.name)}
      </span>
    </div>
  );
}

function LevelTitle(props: { store: Store; level: Level; strip: boolean }): JSX.Element {
  const { store, level, strip } = props;
  const { wire } = level;
  const { cpu, device } = timesOf(level, store.levels.value.value ?? []);
  const through = level.through.join(" › ");
  if (strip)
    return (
      <div class="level-title" style={{ width: `${gutter.value - 4}px` }}>
        <strong title={`${level.title}: ${duration(level.length)}`}>{level.title}</strong>
      </div>
    );
  return (
    <div class="level-title">
      <strong>{level.title}</strong>
      <span class="dim">
        {duration(level.length)}
        {device > 0 && cpu > 0 && <> · CPU {duration(cpu)}</>}
        {device > 0 && <> · device {duration(device)}</>}
        {level.size === 0 && " · nothing inside"}
      </span>
      {wire.hidden > 0 && !store.view.value.every && (
        <button type="button" class="chip" onClick={() => store.set({ every: true })}>
          {plural(wire.hidden, "event")} on other {level.path ? "threads and streams" : "ranks"}
        </button>
      )}
      {through && (
        <span class="through dim" title={through}>
          through {through}
        </span>
      )}
    </div>
  );
}
