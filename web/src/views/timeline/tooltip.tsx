import type { JSX, Ref, RefObject } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import { causeName } from "../../base/causes";
import { duration, markedMoment, percent, plural, sideName, words } from "../../base/format";
import { busyShare, type Level, type Operation } from "../../model/level";
import type { Store } from "../../state/store";
import { axisOf } from "../../state/axis";
import { hover, hovered, pixelNs, type HoveredSlice } from "./scene";
import { FactList } from "../../widgets/fact_list";

/** What the pointer is on, beside it and never off the screen. */
export function Tooltip({ store }: { store: Store }): JSX.Element | null {
  const box = useRef<HTMLDivElement>(null);
  // What was below the pointer may be gone without the pointer having moved.
  const levels = store.view.value.asTable ? null : store.levels.value.value;
  const now = hover.value && levels?.includes(hover.value.level) ? hover.value : null;
  usePlaceBeside(box, now ?? hovered.value);
  const slice = store.view.value.asTable ? null : hovered.value;
  if (!now && slice) return <SliceTip {...slice} store={store} box={box} />;
  if (!now) return null;
  const one = now.level.operation(now.operation);
  const hits = store.hits.value?.get(now.level.path)?.[now.operation] ?? 0;
  return (
    <div class="tooltip" ref={box} role="presentation">
      <div class="tooltip-name">{one.name}</div>
      <FactList facts={facts(now.level, one, hits)} />
    </div>
  );
}

/** Moves a box next to the pointer, never off the screen. */
export function usePlaceBeside(
  box: RefObject<HTMLElement>,
  at: { x: number; y: number } | null,
): void {
  useLayoutEffect(() => {
    if (!at || !box.current) return;
    const { offsetWidth: width, offsetHeight: height, style } = box.current;
    const left = Math.min(at.x + 14, innerWidth - width - 8);
    const below = at.y + 18 + height < innerHeight;
    style.transform = `translate(${Math.max(left, 8)}px, ${below ? at.y + 18 : at.y - height - 12}px)`;
  });
}

/** A time with the digits that a length has and that the zoom shows, and its distance to the marker. */
export function timeText(store: Store, time: number, length: number): string {
  const pixel = pixelNs(axisOf(store).window.value);
  return markedMoment(time, store.view.value.marker, Math.min(length / 10, pixel));
}

/** A slice of a track. */
function SliceTip(props: HoveredSlice & { store: Store; box: Ref<HTMLDivElement> }): JSX.Element {
  const { hit, track, store, box } = props;
  const stage = axisOf(store).about.value.value?.stages[hit.stage];
  const idle = track.kind === "idle";
  const rows: [string, string][] = [
    [idle ? "idle" : "duration", duration(hit.end - hit.start)],
    ["start", timeText(store, hit.start, hit.end - hit.start)],
    ["on", track.name === "idle" ? `device ${track.device}` : track.name],
  ];
  if (stage) rows.push(["stage", words(stage)]);
  return (
    <div class="tooltip" ref={box} role="presentation">
      <div class="tooltip-name">{idle ? causeName(hit.name) : hit.name}</div>
      <FactList facts={rows} />
    </div>
  );
}

function facts(level: Level, one: Operation, hits: number): [string, string][] {
  const share = (ns: number): string => `${duration(ns)} · ${percent(ns / level.length)}`;
  const rows: [string, string][] = [];
  if (one.cpu > 0) rows.push(["CPU", share(one.cpu)]);
  if (one.device > 0) rows.push(["device busy", share(one.device)]);
  rows.push(...spans(level, one));
  if (one.cpu > 0 && one.device > 0) rows.push(["bound by", sideName(one.boundBy)]);
  if (one.recompute > 0) rows.push(["recomputed", duration(one.recompute)]);
  if (one.count > 1)
    rows.push(["copies", `${one.count}, ${duration(one.least)} – ${duration(one.most)}`]);
  if (one.events > 1) rows.push(["raw events", String(one.events)]);
  if (hits > 0) rows.push(["found", plural(hits, "event")]);
  return rows;
}

/** From where to where an operation reaches, on each side where it is not busy throughout. */
function spans(level: Level, one: Operation): [string, string][] {
  return level.rows.flatMap((row) => {
    const bar = row.operation.indexOf(one.index);
    if (bar < 0 || busyShare(row, bar) === 1) return [];
    return [[`${sideName(row.side)} span`, duration(row.end[bar]! - row.start[bar]!)]] as [
      string,
      string,
    ][];
  });
}

/** The chosen operation in one sentence, for a screen reader. */
export function sentence(level: Level, index: number): string {
  const one = level.operation(index);
  const parts = facts(level, one, 0).map(([name, value]) => `${name} ${value}`);
  return `${one.name}, ${parts.join(", ")}${one.opens ? ", opens" : ""}`;
}
