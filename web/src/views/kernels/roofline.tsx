import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import type { KernelRow, Kernels, Roofs } from "../../api/types";
import { milliseconds, percent, significant, words } from "../../base/format";
import {
  above,
  decadesOf,
  dotsOf,
  freeShare,
  mainStage,
  rateOf,
  roofLines,
  type Decades,
  type Disk,
  type Dot,
  type Roof,
} from "../../model/roofline";
import { STAGES } from "../../model/stages";
import { textMeasure } from "../../render/canvas2d";
import { FONT_SMALL } from "../../render/fitted";
import type { Store } from "../../state/store";
import { TableBody } from "../../widgets/table/body";
import { numberColumn, type Column } from "../../widgets/table/column";
import type { TableState } from "../../widgets/table/use_table";
import { useHeight, useWidth } from "../../widgets/width";
import { NAME, OF_PEAK, TOTAL } from "./columns";

/** The plot is as tall as the room for it, so that its axis is in sight, within these, px. */
const [LEAST_HEIGHT, MOST_HEIGHT] = [240, 340];
/** What is said above it. */
const CAPTION_PX = 22;
const LEFT = 62;
const RIGHT = 20;
const TOP = 16;
const BOTTOM = 38;
const SMALLEST_PX = 3.5;
const LARGEST_PX = 16;
/** The highest baseline of a name that is whole. */
const HIGHEST_PX = 11;

/** So far below a roof its name is where there is no room above; between it and a higher roof, px. */
const BELOW_PX = 12;
const APART_PX = 14;
const COLUMNS: Column<KernelRow>[] = [
  NAME,
  TOTAL,
  numberColumn("intensity", "FLOPs/byte", (row) => row.intensity, scientific, {
    hint: "operations per byte moved",
  }),
  numberColumn("rate", "TFLOP/s", rateOf, scientific, { hint: "achieved rate" }),
];

/** The columns next to the plot: those of a rate. */
export function rateColumns(rows: readonly KernelRow[]): Column<KernelRow>[] {
  return rows.some((row) => row.of_peak !== null) ? [...COLUMNS, OF_PEAK] : COLUMNS;
}

/** Operations per byte against the achieved rate, a dot for each kernel, below the device's roofs. */
export function Roofline(props: {
  store: Store;
  value: Kernels;
  table: TableState<KernelRow>;
}): JSX.Element {
  const { store, value, table } = props;
  const all = dotsOf(value.rows);
  const [room, tall] = useHeight<HTMLDivElement>();
  const height = Math.min(Math.max(tall - CAPTION_PX, LEAST_HEIGHT), MOST_HEIGHT);
  return (
    <div class="roofline" ref={room}>
      <Plot
        key={value.are}
        store={store}
        value={value}
        dots={dotsOf(table.found)}
        decades={decadesOf(all, value.roofs)}
        height={height}
      />
      <TableBody table={table} />
    </div>
  );
}

function Plot(props: {
  store: Store;
  value: Kernels;
  dots: Dot[];
  decades: Decades;
  height: number;
}): JSX.Element {
  const { store, value, dots, decades, height } = props;
  const [box, width] = useWidth();
  const shown = useSignal<Dot | null>(null);
  const current = useSignal("");
  const scale = scaleOf(decades, width, height);
  const marked = store.marks.value.kernels;
  const longest = dots.reduce((most, dot) => Math.max(most, dot.row.total_ms), 0);
  const lines = value.roofs ? roofLines(value.roofs, decades) : [];
  const disks = dots.map(({ row, intensity, rate }): Disk => ({
    x: scale.x(intensity),
    y: scale.y(rate),
    r: radius(row.total_ms / longest),
  }));
  const reachable = dots.find((dot) => dot.row.name === current.value) ?? dots[0];
  return (
    <figure ref={box} class="roofline-plot">
      <figcaption class="dim">{caption(value, dots.length)}</figcaption>
      <svg
        width={width}
        height={height}
        role="group"
        aria-label={`Roofline plot of ${value.are}`}
        onKeyDown={walkDots}
      >
        <Grid {...{ decades, scale, width, height }} />
        {lines.map((roof) => (
          <RoofLine key={roof.name} roof={roof} scale={scale} />
        ))}
        {dots.map((dot, i) => (
          <circle
            key={dot.row.name}
            class={marked.has(dot.row.name) ? "dot marked" : "dot"}
            style={{ fill: `var(--stage-${colorOf(dot)})` }}
            cx={disks[i]!.x}
            cy={disks[i]!.y}
            r={disks[i]!.r}
            role="button"
            aria-label={described(dot)}
            aria-pressed={marked.has(dot.row.name)}
            tabIndex={dot === reachable ? 0 : -1}
            onFocus={() => {
              current.value = dot.row.name;
              shown.value = dot;
            }}
            onBlur={() => (shown.value = null)}
            onPointerEnter={() => (shown.value = dot)}
            onPointerLeave={() => (shown.value = null)}
            onClick={() => void store.choosePart({ kernel: dot.row.name })}
          />
        ))}
        {value.roofs &&
          lines.map((roof) => (
            <RoofName
              key={roof.name}
              roof={roof}
              roofs={value.roofs!}
              lines={lines}
              scale={scale}
              disks={disks}
            />
          ))}
      </svg>
      <p class="roofline-readout" aria-hidden="true">
        {shown.value ? described(shown.value) : "Point at a dot, or walk them with the arrow keys."}
      </p>
      <Stages dots={dots} />
    </figure>
  );
}

/** `67 of 69 kernels; roofs of V100`. */
function caption(value: Kernels, dots: number): string {
  const roofs = value.roofs
    ? `roofs of ${value.roofs.device}`
    : "no roofs: the trace names no device whose peak rates are known";
  return `${dots} of ${value.rows.length} ${value.are}, the larger the longer; ${roofs}`;
}

interface Scale {
  x: (intensity: number) => number;
  y: (rate: number) => number;
}

function scaleOf({ intensity, rate }: Decades, width: number, height: number): Scale {
  const place = (value: number, [low, high]: [number, number]): number =>
    (Math.log10(value) - low) / (high - low);
  return {
    x: (value) => LEFT + place(value, intensity) * (width - LEFT - RIGHT),
    y: (value) => height - BOTTOM - place(value, rate) * (height - TOP - BOTTOM),
  };
}

function Grid(props: {
  decades: Decades;
  scale: Scale;
  width: number;
  height: number;
}): JSX.Element {
  const { decades, scale, width, height } = props;
  const end = width - RIGHT;
  return (
    <g class="grid" aria-hidden="true">
      {powers(decades.intensity).map((value) => (
        <g key={value}>
          <line x1={scale.x(value)} x2={scale.x(value)} y1={TOP} y2={height - BOTTOM} />
          <text x={scale.x(value)} y={height - BOTTOM + 15} text-anchor="middle">
            {power(value)}
          </text>
        </g>
      ))}
      {powers(decades.rate).map((value) => (
        <g key={value}>
          <line x1={LEFT} x2={end} y1={scale.y(value)} y2={scale.y(value)} />
          <text x={LEFT - 6} y={scale.y(value) + 4} text-anchor="end">
            {power(value)}
          </text>
        </g>
      ))}
      <text x={(LEFT + end) / 2} y={height - 4} text-anchor="middle">
        operations per byte (FLOPs/byte)
      </text>
      <text class="axis-title" text-anchor="middle" transform={`translate(12 ${height / 2}) rotate(-90)`}>
        TFLOP/s
      </text>
    </g>
  ); // prettier-ignore
}

/** The ends of a roof, px. */
function endsOf({ from, to }: Roof, { x, y }: Scale) {
  return { x1: x(from[0]), y1: y(from[1]), x2: x(to[0]), y2: y(to[1]) };
}

function RoofLine({ roof, scale }: { roof: Roof; scale: Scale }): JSX.Element {
  return <line class="roof" {...endsOf(roof, scale)} />;
}

/** The rate of a roof, clear of the dots: along the slope, or above the end of a level. */
function RoofName(props: {
  roof: Roof;
  roofs: Roofs;
  lines: readonly Roof[];
  scale: Scale;
  disks: readonly Disk[];
}): JSX.Element {
  const { roof, roofs, lines, scale, disks } = props;
  const { x1, y1, x2, y2 } = endsOf(roof, scale);
  if (roof.name !== "memory") {
    const text = `${precision(roof.name)} ${significant(roof.from[1])} TFLOP/s`;
    const free = above(disks, x2 - textMeasure(FONT_SMALL)(text), x2, y2 - 5);
    const levels = lines.filter((one) => one.name !== "memory").map((one) => endsOf(one, scale).y2);
    const ceiling = levels.reduce(
      (most, one) => (one < y2 ? Math.max(most, one + APART_PX) : most),
      HIGHEST_PX,
    );
    const y = free < ceiling ? y2 + BELOW_PX : free;
    return (
      <text class="roof-name" x={x2} y={y} text-anchor="end">
        {text}
      </text>
    );
  }
  const along = (share: number): [number, number] => [
    x1 + (x2 - x1) * share,
    y1 + (y2 - y1) * share - 5,
  ];
  const angle = (Math.atan2(y2 - y1, x2 - x1) * 180) / Math.PI;
  const text = `${significant(roofs.gbytes!)} GB/s`;
  const share = freeShare(disks, along, textMeasure(FONT_SMALL)(text));
  const place = `translate(${along(share).join(" ")}) rotate(${angle})`;
  return (
    <text class="roof-name" text-anchor="middle" transform={place}>
      {text}
    </text>
  );
}

/** What the hues of the dots say. */
function Stages({ dots }: { dots: Dot[] }): JSX.Element {
  const there = new Set(dots.map(colorOf));
  const shown = [...STAGES, "none"].filter((stage) => there.has(stage));
  return (
    <p class="legend" aria-label="Stages of the dots">
      {shown.map((stage) => (
        <span key={stage} class="legend-entry">
          <span class={`swatch c-${stage}`} aria-hidden="true" />
          {stage === "none" ? "no stage" : words(stage)}
        </span>
      ))}
    </p>
  );
}

function colorOf(dot: Dot): string {
  return mainStage(dot.row) || "none";
}

/** `sgemm: 16.4 ms a step, 8.03 TFLOP/s at 96.6 FLOPs/byte, 51 % of peak (compute)`. */
function described({ row, intensity, rate }: Dot): string {
  const peak = row.of_peak === null ? "" : `, ${percent(row.of_peak)} of peak (${row.limit})`;
  const speed = `${scientific(rate)} TFLOP/s at ${scientific(intensity)} FLOPs/byte`;
  return `${row.short}: ${milliseconds(row.total_ms)} a step, ${speed}${peak}`;
}

function precision(name: string): string {
  return name === "half" ? "16-bit" : name.toUpperCase();
}

/** The area of a dot is its share of the longest one's time. */
function radius(share: number): number {
  return Math.max(LARGEST_PX * Math.sqrt(share), SMALLEST_PX);
}

function powers([low, high]: [number, number]): number[] {
  return Array.from({ length: high - low + 1 }, (_, index) => 10 ** (low + index));
}

/** `0.01`, `100`; far from one `10⁻⁴`. */
function power(value: number): string {
  const exponent = Math.round(Math.log10(value));
  return Math.abs(exponent) > 3 ? `10${superscript(exponent)}` : String(10 ** exponent);
}

/** Three significant digits; far from one `8.0×10⁻⁵`. */
function scientific(value: number): string {
  if (value === 0 || Math.abs(value) >= 0.01) return significant(value);
  if (value >= 1e-4) return value.toPrecision(2);
  const [digits, exponent] = value.toExponential(1).split("e");
  return `${digits}×10${superscript(Number(exponent))}`;
}

/** `⁻⁴` of −4. */
function superscript(exponent: number): string {
  const digits = [...String(Math.abs(exponent))].map((one) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(one)]);
  return (exponent < 0 ? "⁻" : "") + digits.join("");
}

/** The arrow keys walk the dots by time, Enter and the space bar choose one. */
function walkDots(event: KeyboardEvent): void {
  const dot = event.target as Element;
  if (!dot.matches(".dot")) return;
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (event.key === "Enter" || event.key === " ")
    dot.dispatchEvent(new MouseEvent("click", { bubbles: true }));
  else if (step) {
    const dots = [...dot.parentElement!.querySelectorAll<SVGElement>(".dot")];
    dots[(dots.indexOf(dot as SVGElement) + step + dots.length) % dots.length]!.focus();
  } else return;
  event.preventDefault();
  event.stopPropagation();
}
