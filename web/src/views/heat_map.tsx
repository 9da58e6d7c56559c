import { effect, useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import { milliseconds, percent, words } from "../base/format";
import { bounds, columnsOf, placeIn, type Heat, type Run } from "../model/heat";
import { mix, parseHex, type Rgb } from "../render/palette";
import { theme } from "../state/theme";
import { useWidth } from "../widgets/width";

export interface HeatMapProps {
  label: string;
  heat: Heat;
  /** Places of the ranks, left to right. */
  order: readonly number[];
  runs: readonly Run[];
  rowPx: number;
  /** How many rows a name at the left is about. */
  namedEvery: number;
  /** Places of ranks to mark. */
  marked: ReadonlySet<number>;
  chosen: number;
  nameOf: (place: number) => string;
  /** What one unit of `excess` is, ms. */
  whole: number;
  /** What orange and blue say: `more` and `less` than the median rank, or `later` and `earlier`. */
  sides: readonly [string, string];
  onChoose: (place: number) => void;
  onWalk: (by: number) => void;
}

/** Ranks from left to right, rows of how much longer each takes than the median rank. */
export function HeatMap(props: HeatMapProps): JSX.Element {
  const { heat, order, rowPx } = props;
  const canvas = useRef<HTMLCanvasElement>(null);
  const [field, width] = useWidth<HTMLDivElement>();
  const over = useSignal<{ place: number; row: number; left: number } | null>(null);
  const columns = Math.max(Math.min(order.length, Math.round(width)), 1);

  useLayoutEffect(() => {
    return effect(() => {
      void theme.value; // whose colors are drawn
      if (canvas.current) draw(canvas.current, heat, order, columns);
    });
  }, [heat, order, columns]);

  const find = (event: MouseEvent): void => {
    const box = canvas.current!.getBoundingClientRect();
    const across = Math.min(Math.max((event.clientX - box.left) / box.width, 0), 0.999999);
    const row = Math.floor(((event.clientY - box.top) / box.height) * heat.names.length);
    const [from, to] = bounds(Math.floor(across * columns), columns, order.length);
    const place = to - from > 1 ? placeIn(heat, order, from, to) : from;
    const inside = Math.min(Math.max(row, 0), heat.names.length - 1);
    over.value = { place, row: inside, left: event.clientX - box.left };
  };
  const at = (place: number): string => `${(100 * (place + 0.5)) / order.length}%`;
  // Around the column of a rank, or so wide that it is seen.
  const around = (place: number) => ({
    left: at(place),
    width: `max(5px, ${100 / order.length}%)`,
  });
  const now = over.value;
  const chosen = order.indexOf(props.chosen);
  const height = rowPx * heat.names.length;
  return (
    <div class="heat">
      <ol class="heat-names" aria-hidden="true">
        {heat.names.map(
          (name, row) =>
            row % props.namedEvery === 0 && (
              <li key={name} title={words(name)} style={{ top: `${row * rowPx}px` }}>
                {words(name)}
              </li>
            ),
        )}
      </ol>
      <div class="heat-field" ref={field} style={{ height: `${height}px` }}>
        <canvas
          ref={canvas}
          role="slider"
          tabIndex={0}
          aria-label={props.label}
          aria-valuemin={1}
          aria-valuemax={order.length}
          aria-valuenow={Math.max(chosen, 0) + 1}
          aria-valuetext={chosen < 0 ? "no rank chosen" : props.nameOf(props.chosen)}
          onPointerMove={find}
          onPointerLeave={() => (over.value = null)}
          onClick={(event) => {
            find(event);
            props.onChoose(order[over.value!.place]!);
          }}
          onKeyDown={(event) => {
            const by = STEPS[event.key];
            if (!by) return;
            event.preventDefault();
            props.onWalk(by);
          }}
        />
        {[...props.marked].map((place) => (
          <span key={place} class="heat-mark" style={{ left: at(order.indexOf(place)) }} />
        ))}
        {chosen >= 0 && <span class="heat-chosen" style={around(chosen)} />}
        {now && <span class="heat-over" style={around(now.place)} />}
        {now && (
          <p
            class={`heat-tip${now.left > width / 2 ? " left" : ""}`}
            style={{ left: at(now.place) }}
          >
            <strong>{props.nameOf(order[now.place]!)}</strong>
            <br />
            {tip(props, order[now.place]!, now.row)}
          </p>
        )}
      </div>
      <Runs runs={props.runs} ranks={order.length} width={width} />
    </div>
  );
}

const STEPS: Record<string, number> = {
  ArrowLeft: -1, ArrowRight: 1, PageUp: -8, PageDown: 8, Home: -1e9, End: 1e9,
}; // prettier-ignore

function tip({ heat, whole, sides }: HeatMapProps, rank: number, row: number): string {
  const share = heat.excess[row]![rank]!;
  if (Number.isNaN(share)) return `${words(heat.names[row]!)}: takes no part`;
  const ms = milliseconds(Math.abs(share * whole));
  const than = sides[share >= 0 ? 0 : 1];
  return `${words(heat.names[row]!)}: ${ms} ${than} than the median rank, ${percent(Math.abs(share))} of the step`;
}

/** One pixel for each cell, which the style sheet stretches. */
function draw(
  canvas: HTMLCanvasElement,
  heat: Heat,
  order: readonly number[],
  columns: number,
): void {
  const style = getComputedStyle(canvas);
  const color = (name: string): Rgb => parseHex(style.getPropertyValue(`--${name}`).trim());
  const ramp = rampOf([color("less"), color("lane"), color("more")]);
  [canvas.width, canvas.height] = [columns, heat.names.length];
  const context = canvas.getContext("2d")!;
  const image = context.createImageData(columns, heat.names.length);
  heat.excess.forEach((row, y) => {
    columnsOf(row, order, columns).forEach((value, x) => {
      const share = Math.min(Math.max(value / heat.most, -1), 1);
      const pixel = ramp[Math.round(((share + 1) / 2) * (ramp.length - 1))]!;
      image.data.set([...pixel, 255], 4 * (y * columns + x));
    });
  });
  context.putImageData(image, 0, 0);
}

const SHADES = 513; // an odd number, so that no difference is the color in the middle

function rampOf(stops: Rgb[]): Rgb[] {
  return Array.from({ length: SHADES }, (_, i) => mix(stops, i / (SHADES - 1)));
}

const LETTER_PX = 6.5;

/** The machines or groups below the map, as far as there is room for their names. */
function Runs(props: { runs: readonly Run[]; ranks: number; width: number }): JSX.Element | null {
  const { runs, ranks, width } = props;
  if (runs.length < 2 && !runs[0]?.name) return null;
  const longest = Math.max(...runs.map((one) => one.name.length)) * LETTER_PX + 8;
  const every = Math.max(Math.ceil((longest * runs.length) / (width || 1)), 1);
  return (
    <ol class="heat-runs" aria-hidden="true">
      {runs
        .filter((one, row) => row % every === 0 && one.from < ranks * (1 - longest / (width || 1)))
        .map((one) => (
          <li key={one.from} title={one.name} style={{ left: `${(100 * one.from) / ranks}%` }}>
            {one.name}
          </li>
        ))}
    </ol>
  );
}

/** What the strongest colors of a map mean. */
export function HeatLegend(props: { most: number; sides: readonly [string, string] }): JSX.Element {
  const share = percent(props.most);
  const [more, less] = props.sides;
  return (
    <span class="heat-legend dim">
      {share} of the step {less} <span class="heat-scale" aria-hidden="true" /> {share} {more} than
      the median rank
    </span>
  );
}
