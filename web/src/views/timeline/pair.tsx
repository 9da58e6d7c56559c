import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useLayoutEffect, useMemo, useRef } from "preact/hooks";
import type { Pair } from "../../api/types";
import { causeName } from "../../base/causes";
import { duration, milliseconds, plural, signedPercent, words } from "../../base/format";
import { stepOf } from "../../base/path";
import {
  changeOf,
  differences,
  isAlone,
  lengthOf,
  lostIn,
  neighbor,
  partnerOf,
  rectangleAt,
  rowsOf,
  sidesOf,
  spanOf,
  type Row,
  type Side,
  type Spot,
} from "../../model/pair";
import { shortNameOf, sideOf } from "../../model/tracks";
import { textMeasure } from "../../render/canvas2d";
import { FONT_SMALL } from "../../render/fitted";
import type { Palette } from "../../render/palette";
import { drawPair, GAP_PX, LANE_PX, PAIR_PX } from "../../render/pair";
import type { AxisState } from "../../state/axis";
import { choiceOf, firstStep, othersOf, pairOf, selectedPiece } from "../../state/pair";
import type { Store } from "../../state/store";
import type { Over } from "../../state/url";
import { ErrorLine } from "../../widgets/answer";
import { FactList } from "../../widgets/fact_list";
import { findingsOf } from "../findings";
import { deviceChip } from "./level";
import { gutter } from "./scene";
import { timeText, usePlaceBeside } from "./tooltip";
import { chooseEvent, roomy } from "./tracks";

/** Threads that work less than this share of the time are shown on demand. */
const HARDLY = 0.01;
const REACH_PX = 2;
/** So much of its own length is shown around a difference. */
const AROUND = 6;

/** Something that the timeline can show. */
interface Shown {
  name: string;
  hint: string;
  on: boolean;
  run: () => void;
}

/** What can lie below the step on screen: nothing, its prediction, or a step of another run or rank. */
export function shownOf(store: Store): Shown[] {
  const { over } = store.view.value;
  const here = store.client.value?.trace;
  const others = othersOf(store);
  const { itself } = choiceOf(store).value;
  const runs = others.filter((one) => one.id !== here);
  const all: [boolean, Shown][] = [
    [true, { name: "Measured", hint: "The step as it was recorded", on: over === "", run: () => showOver(store, "") }],
    [store.host.live || store.host.whatIfs.length > 0, { name: "Predicted", hint: "The step above its prediction with the what-if changes", on: over === "predicted", run: () => showOver(store, "predicted") }],
    [runs.length > 0, { name: "Other run", hint: "The step above one of another open trace", on: over === "other" && !itself, run: () => showOther(store, runs[0]!.id) }],
    [runs.length < others.length, { name: "Other rank", hint: "The step above the same step of another rank", on: over === "other" && itself, run: () => showOther(store, here!) }],
  ];
  return all.filter(([there]) => there).map(([, one]) => one);
} // prettier-ignore

export function PairSwitch({ store }: { store: Store }): JSX.Element {
  return (
    <span class="tool-group" role="group" aria-label="Timeline shows">
      {shownOf(store).map(({ name, hint, on, run }) => (
        <button key={name} type="button" aria-pressed={on} title={hint} onClick={run}>
          {name}
        </button>
      ))}
    </span>
  );
}

/** A step has to be open: the first one unless somebody went elsewhere or chose something in it. */
export function showOver(store: Store, over: Over): void {
  const { path, chosen, changes } = store.view.value;
  const opened = firstStep(store, over);
  const stays = path && (chosen || over !== "other" || path !== firstStep(store, ""));
  const start = stays ? {} : { path: opened, window: null };
  const first = findingsOf(store).value.value?.findings.find((one) => one.changes.length);
  const wanted = over === "predicted" && !changes.length && first;
  const [embedded] = store.host.whatIfs.filter(Boolean);
  const asked = !wanted ? {} : { changes: embedded ? embedded.split("\n") : first.changes };
  store.set({ ...start, ...asked, over });
}

function showOther(store: Store, against: string): void {
  const { flame } = store.view.value;
  const known = flame.against === against || choiceOf(store).value.against === against;
  store.set(known ? {} : { flame: { ...flame, against, zoom: null }, againstRank: null });
  showOver(store, "other");
}

interface PairProps {
  store: Store;
  axis: AxisState;
  width: number;
  palette: Palette;
}

/** The step on screen and another one, lane above lane on the one axis, joined piece by piece. */
export function PairLanes(props: PairProps): JSX.Element {
  const { store } = props;
  const { value, error, loading } = pairOf(store).value;
  const { over, changes } = store.view.value;
  if (error)
    return (
      <>
        <ErrorLine text={error} />
        {over === "other" && <Which store={store} />}
      </>
    );
  if (value) return <Lanes {...props} pair={value} busy={loading} />;
  if (over === "predicted" && !changes.length)
    return (
      <p class="note">
        No change is switched on.{" "}
        <button type="button" onClick={() => store.set({ pane: "whatif" })}>
          Choose a change
        </button>
      </p>
    );
  if (over === "other" && !othersOf(store).length && !isReading(store))
    return <p class="note">No other open trace and no other rank has a step.</p>;
  return <p class="note">{over === "predicted" ? "Simulating…" : "Pairing the steps…"}</p>;
}

/** Whether another trace is on its way. */
function isReading(store: Store): boolean {
  return store.traces.value?.traces.some((one) => one.state === "loading") ?? false;
}

function Lanes(props: PairProps & { pair: Pair; busy: boolean }): JSX.Element {
  const { store, axis, pair, width, palette } = props;
  const every = store.view.value.every;
  const rows = useMemo(() => rowsOf(pair, every ? 0 : HARDLY), [pair, every]);
  const found = useMemo(() => differences(pair, rows), [pair, rows]);
  const hover = useSignal<{ spot: Spot; x: number; y: number } | null>(null);
  const selected = selectedPiece(store);
  useLayoutEffect(() => {
    selected.value = hover.value = null;
    axis.below.value = pair.start_ns + lengthOf(pair) * 1000;
    return () => (axis.below.value = 0);
  }, [pair, rows]);
  const select = (spot: Spot | null): void => {
    selected.value = spot;
    const event = spot && eventOf(store, pair, spot);
    if (event !== null) chooseEvent(store, event);
  };
  const go = (spot: Spot): void => {
    const { from, to } = spanOf(pair, spot);
    select(spot);
    axis.show(roomy(from, to, AROUND));
  };
  const press = (event: KeyboardEvent): void => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    if (!event.key.startsWith("Arrow") || event.target instanceof HTMLButtonElement) return;
    select(neighbor(pair, rows, selected.value, event.key));
    event.preventDefault();
    event.stopPropagation();
  };
  const titles = titlesOf(store, pair);
  const chosen = store.details.value.value?.event ?? -1;
  const shown = useMemo(() => spotOf(pair, rows, chosen), [pair, rows, chosen]);
  const spot = hover.value?.spot ?? selected.value ?? shown;
  return (
    <div
      class="pair"
      role="group"
      aria-label="Two timelines: arrow keys walk them"
      aria-busy={props.busy}
      tabIndex={0}
      onKeyDown={press}
    >
      <PairHead {...{ store, pair, titles, found, go }} />
      {rows.map((row, number) => (
        <Lane
          key={number}
          {...{ store, axis, pair, row, number, width, palette, titles }}
          spot={spot?.row === number ? spot : null}
          onHover={(at) => (hover.value = at)}
          onSelect={select}
        />
      ))}
      <p class="unseen" role="status" aria-live="polite">
        {selected.value && described(store, pair, titles, rows, selected.value).flat().join(", ")}
      </p>
      {hover.value && <PairTip {...{ store, pair, titles, rows }} {...hover.value} />}
    </div>
  );
}

/** Where the event is that was chosen elsewhere; null where it is in no piece alone. */
function spotOf(pair: Pair, rows: Row[], event: number): Spot | null {
  const side = pair.upper;
  const index = event < 0 ? -1 : pair[side].event.indexOf(event);
  const row = rows.findIndex((one) => one[side].includes(index));
  return row < 0 ? null : { side, row, index };
}

type Titles = Record<Side, string>;

function titlesOf(store: Store, pair: Pair): Titles {
  if (pair.upper === "before") return { before: "measured", after: "predicted" };
  const { against, itself, againstRank } = choiceOf(store).value;
  const traces = store.traces.value?.traces ?? [];
  const named = (id: string | undefined): string => traces.find((one) => one.id === id)?.name ?? "";
  const rank = stepOf(store.view.value.path ?? "")?.rank ?? store.overview.value.value?.rank;
  return itself
    ? { before: `rank ${againstRank}`, after: `rank ${rank}` }
    : { before: named(against), after: named(store.client.value?.trace) };
}

/** The event of a piece in the trace on screen: its own, or its partner's. */
function eventOf(store: Store, pair: Pair, spot: Spot): number | null {
  const own = pair.upper === "before" || choiceOf(store).value.itself || spot.side === "after";
  const at = own ? spot : partnerOf(pair, spot);
  const event = at ? pair[at.side].event[at.index]! : -1;
  return event >= 0 ? event : null;
}

const BOTH_ARE: Record<Pair["both_are"], string> = {
  slowest: "the slowest of each run",
  typical: "nearest to each run's median",
  fastest: "the fastest of each run",
  as_long: "equally slow within each run",
  "": "",
};

/** What both sides are, how long they take, and the way to what differs. */
function PairHead(props: {
  store: Store;
  pair: Pair;
  titles: Titles;
  found: Spot[];
  go: (spot: Spot) => void;
}): JSX.Element {
  const { store, pair, titles, found, go } = props;
  const selected = selectedPiece(store).value;
  const after = selected ? spanOf(pair, selected).from : -Infinity;
  const next = found.find((one) => spanOf(pair, one).from > after) ?? found[0];
  const size = ({ side, index }: Spot): number => Math.abs(lostIn(pair, side, index));
  const largest = found.reduce<Spot | null>((a, b) => (a && size(a) >= size(b) ? a : b), null);
  const [upper, lower] = sidesOf(pair) as [Side, Side];
  const { before_us: was, after_us: is } = pair;
  const took = (side: Side): string => milliseconds((side === "before" ? was : is) / 1000);
  const numbers =
    pair.step === pair.other ? `step ${pair.step}` : `steps ${pair.step} and ${pair.other}`;
  const steps = [numbers, BOTH_ARE[pair.both_are]].filter(Boolean).join(", ");
  return (
    <div class="pair-head">
      <span class="pair-title">
        <strong>
          {titles[upper]} {took(upper)}
        </strong>{" "}
        above {titles[lower]} {took(lower)},{" "}
        <b class={is > was ? "lost" : "won"}>{changed(is - was, was)}</b>{" "}
        <span class="dim">{steps}</span>
      </span>
      {pair.upper === "after" && <Which store={store} />}
      {next && largest ? (
        <span class="tool-group">
          <button type="button" onClick={() => go(next)}>
            {selected ? "Next" : "First"} difference
          </button>
          <button type="button" onClick={() => go(largest)}>
            Largest
          </button>
        </span>
      ) : (
        <span class="dim">no piece differs</span>
      )}
      <button
        type="button"
        class="link"
        onClick={() => store.set({ pane: pair.upper === "before" ? "whatif" : "compare" })}
      >
        {pair.upper === "before" ? "Changes" : "Tables"}
      </button>
      <Legend />
    </div>
  );
}

/** Which run or rank lies below, where there are several. */
function Which({ store }: { store: Store }): JSX.Element | null {
  const { itself, against, rank, againstRank } = choiceOf(store).value;
  const here = store.client.value?.trace;
  const ranks = store.overview.value.value?.ranks ?? [];
  const others = itself
    ? ranks.filter((one) => one !== rank).map((one) => ({ id: String(one), name: `rank ${one}` }))
    : othersOf(store).filter((one) => one.id !== here);
  if (others.length < 2) return null;
  const choose = (id: string): void => {
    const flame = { ...store.view.value.flame, against: id, zoom: null };
    store.set(itself ? { againstRank: Number(id) } : { flame, againstRank: null });
  };
  return (
    <select
      aria-label={itself ? "Rank below" : "Run below"}
      value={itself ? String(againstRank) : against}
      onChange={(event) => choose(event.currentTarget.value)}
    >
      {others.map((one) => (
        <option key={one.id} value={one.id}>
          {one.name}
        </option>
      ))}
    </select>
  );
}

function Legend(): JSX.Element {
  return (
    <span class="pair-legend dim">
      <span class="swatch ribbon-more" aria-hidden="true" /> longer
      <span class="swatch ribbon-less" aria-hidden="true" /> shorter
      <span class="swatch wedge-more" aria-hidden="true" /> added
      <span class="swatch wedge-less" aria-hidden="true" /> removed
    </span>
  );
}

/** `+1.2 ms (+12 %)`, `−60 ms (−34 %)`. */
function changed(us: number, of: number): string {
  if (Math.abs(us) < 0.001) return "no change";
  const share = of > 0 ? ` (${signedPercent(us / of)})` : "";
  return `${us > 0 ? "+" : "−"}${duration(Math.abs(us) * 1000)}${share}`;
}

interface LaneProps extends PairProps {
  pair: Pair;
  row: Row;
  number: number;
  titles: Titles;
  spot: Spot | null;
  onHover: (at: { spot: Spot; x: number; y: number } | null) => void;
  onSelect: (spot: Spot) => void;
}

function Lane(props: LaneProps): JSX.Element {
  const { store, axis, pair, row, number, width, palette, spot } = props;
  const canvas = useRef<HTMLCanvasElement>(null);
  const window = axis.window.value;
  const text = store.view.value.text.toLowerCase();
  useLayoutEffect(() => {
    const measure = textMeasure(FONT_SMALL);
    drawPair(canvas.current!, { pair, row, window, width, palette, spot, text, measure });
  }, [pair, row, window.from, window.to, width, palette, spot, text]);
  useLayoutEffect(() => props.onHover(null), [window.from, window.to]);
  const meet = (event: MouseEvent): Spot | null => {
    const y = event.offsetY;
    const side = sidesOf(pair)[y < LANE_PX ? 0 : y >= LANE_PX + GAP_PX ? 1 : 2];
    if (!side) return null;
    const scale = (window.to - window.from) / width;
    const us = (window.from + event.offsetX * scale - pair.start_ns) / 1000;
    const index = rectangleAt(pair[side], row[side], us, (REACH_PX * scale) / 1000);
    return index < 0 ? null : { side, row: number, index };
  };
  const { kind, name } = row.thread;
  const lower = sidesOf(pair)[1]!;
  return (
    <div class="pair-row" style={{ height: `${PAIR_PX + 6}px` }}>
      <div class="track-name" style={{ width: `${gutter.value - 4}px` }} title={name}>
        <span class="side">{sideOf(kind === "idle" ? "device" : kind, null, deviceChip(store))}</span>
        <span class="row-which">{shortNameOf(name)}</span>
      </div>
      <div class="pair-below dim" style={{ width: `${gutter.value - 8}px`, top: `${LANE_PX + GAP_PX}px` }} title={props.titles[lower]}>
        {props.titles[lower]}
      </div>
      <div
        class="track-bars"
        style={{ left: `${gutter.value}px`, width: `${width}px`, height: `${PAIR_PX}px` }}
        onPointerMove={(event) => {
          const met = meet(event);
          props.onHover(met && { spot: met, x: event.clientX, y: event.clientY });
        }}
        onPointerLeave={() => props.onHover(null)}
        onClick={(event) => {
          const met = meet(event);
          if (met) props.onSelect(met);
        }}
        onDblClick={(event) => {
          const met = meet(event);
          if (met) axis.show(roomy(spanOf(pair, met).from, spanOf(pair, met).to));
        }}
      >
        <canvas
          ref={canvas}
          role="img"
          aria-label={`${name}: ${plural(row.before.length, "piece")} and ${row.after.length}`}
          style={{ width: `${width}px`, height: `${PAIR_PX}px` }}
        />
      </div>
    </div>
  ); // prettier-ignore
}

/** A piece in words: what it is, and how it differs from its partner. */
function described(
  store: Store,
  pair: Pair,
  titles: Titles,
  rows: Row[],
  spot: Spot,
): [string, string][] {
  const { side, index, row } = spot;
  const drawn = pair[side];
  const long = drawn.duration_us[index]!;
  const other = side === "before" ? "after" : "before";
  const partner = partnerOf(pair, spot);
  const facts: [string, string][] = [
    [titles[side], duration(long * 1000)],
    ...(partner ? [[titles[other], duration(pair[other].duration_us[partner.index]! * 1000)] as [string, string]] : []),
  ]; // prettier-ignore
  if (isAlone(drawn, index)) facts.push(["only here", side === "after" ? "added" : "removed"]);
  const { us, of } = changeOf(pair, spot);
  if (partner) facts.push(["change", changed(us, of)]);
  const start = spanOf(pair, spot).from;
  if (side === pair.upper) facts.push(["start", timeText(store, start, long * 1000)]);
  if (drawn.tasks[index]! > 1) facts.push(["pieces", String(drawn.tasks[index])]);
  if (drawn.stage[index]) facts.push(["stage", words(drawn.stage[index]!)]);
  facts.push(["on", rows[row]?.thread.name ?? ""]);
  return facts; // prettier-ignore
}

function PairTip(props: { store: Store; pair: Pair; titles: Titles; rows: Row[]; spot: Spot; x: number; y: number }): JSX.Element {
  const { store, pair, spot, titles, rows } = props;
  const box = useRef<HTMLDivElement>(null);
  usePlaceBeside(box, props);
  const drawn = pair[spot.side];
  const name = drawn.name[spot.index] ?? "";
  const idle = drawn.kind[spot.index] === "idle";
  return (
    <div class="tooltip" ref={box} role="presentation">
      <div class="tooltip-name">{idle ? `idle: ${causeName(name)}` : words(name)}</div>
      <FactList facts={described(store, pair, titles, rows, spot)} />
    </div>
  );
} // prettier-ignore
