import type { JSX } from "preact";
import type { BatchProfile, PanelPrediction as Prediction } from "../../api/batch_types";
import { bytes, grouped } from "../../base/format";
import { at, most } from "../../model/choice";
import type { BatchStore } from "../../state/batch";
import { useWidth } from "../../widgets/width";

const HEIGHT = 112;
const LEFT = 62;
const RIGHT = 10;
const TOP = 8;
const BOTTOM = 18;

interface Quantity {
  title: string;
  color: string;
  of: (one: Prediction) => number;
  range: (one: Prediction) => readonly [number, number];
  measured: (one: { throughput: number; bytes: number }) => number;
  text: (value: number) => string;
  line: number | null;
  lineText: string;
}

/** Throughput and memory over the batch size: what was measured, the model, its band, the limit. */
export function Charts(props: {
  store: BatchStore;
  profile: BatchProfile;
  chosen: Prediction;
}): JSX.Element {
  const { profile } = props;
  const throughput: Quantity = {
    title: "Samples a second",
    color: "c-throughput",
    of: (one) => one.throughput,
    range: (one) => [one.throughput_range[0], one.throughput_range[1] ?? one.throughput],
    measured: (one) => one.throughput,
    text: grouped,
    line: profile.max_throughput,
    lineText: "limit",
  };
  const memory: Quantity = {
    title: "Peak memory",
    color: "c-memory",
    of: (one) => one.bytes ?? 0,
    range: (one) => one.bytes_range ?? [one.bytes ?? 0, one.bytes ?? 0],
    measured: (one) => one.bytes,
    text: bytes,
    line: profile.capacity,
    lineText: "out of memory",
  };
  return (
    <div class="charts">
      <Chart {...props} quantity={throughput} />
      <Chart {...props} quantity={memory} />
    </div>
  );
}

function Chart(props: {
  store: BatchStore;
  profile: BatchProfile;
  chosen: Prediction;
  quantity: Quantity;
}): JSX.Element {
  const { store, profile, chosen, quantity } = props;
  const [box, width] = useWidth();
  const { curve } = profile;
  const right = curve[curve.length - 1]!.batch;
  const top = 1.08 * highest(profile, quantity);
  const x = (batch: number) => LEFT + (batch / right) * (width - LEFT - RIGHT);
  const y = (value: number) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - TOP - BOTTOM);
  const pick = (event: PointerEvent) => {
    const left = (event.currentTarget as Element).getBoundingClientRect().left;
    const batch = ((event.clientX - left - LEFT) / (width - LEFT - RIGHT)) * right;
    store.choose(at(curve, batch));
  };
  const line = curve.map((one) => `${x(one.batch)},${y(quantity.of(one))}`).join(" ");
  const upper = curve.map((one) => `${x(one.batch)},${y(Math.min(quantity.range(one)[1], top))}`);
  const lower = curve.map((one) => `${x(one.batch)},${y(Math.max(quantity.range(one)[0], 0))}`);
  return (
    <figure ref={box} class={`chart ${quantity.color}`} aria-label={quantity.title}>
      <figcaption>{quantity.title}</figcaption>
      <svg width={width} height={HEIGHT} onClick={pick as never} role="img">
        <title>{`${quantity.title} over the batch size`}</title>
        {[0, 0.5, 1].map((share) => {
          const value = (top / 1.08) * share;
          return (
            <g key={share} class="grid">
              <line x1={LEFT} x2={width - RIGHT} y1={y(value)} y2={y(value)} />
              <text x={LEFT - 6} y={y(value) + 4} text-anchor="end">
                {quantity.text(value)}
              </text>
            </g>
          );
        })}
        {ticks(right, width).map((batch) => (
          <text key={batch} class="tick" x={x(batch)} y={HEIGHT - 4} text-anchor="middle">
            {batch}
          </text>
        ))}
        <text class="tick" x={LEFT - 6} y={HEIGHT - 4} text-anchor="end">
          batch size
        </text>
        <polygon class="band" points={[...upper, ...lower.reverse()].join(" ")} />
        {quantity.line !== null && quantity.line <= top && (
          <g class="limit">
            <line x1={LEFT} x2={width - RIGHT} y1={y(quantity.line)} y2={y(quantity.line)} />
            <text x={width - RIGHT - 4} y={y(quantity.line) - 4} text-anchor="end">
              {quantity.lineText}
            </text>
          </g>
        )}
        <polyline class="model" points={line} />
        <line class="now" x1={x(chosen.batch)} x2={x(chosen.batch)} y1={TOP} y2={HEIGHT - BOTTOM} />
        {profile.points
          .filter((one) => one.batch <= right)
          .map((one) => (
            <circle
              key={one.batch}
              class={one.held_back ? "point held" : "point"}
              cx={x(one.batch)}
              cy={y(quantity.measured(one))}
              r={3.5}
            >
              <title>{`measured at ${one.batch}: ${quantity.text(quantity.measured(one))}`}</title>
            </circle>
          ))}
        <circle class="chosen" cx={x(chosen.batch)} cy={y(quantity.of(chosen))} r={4.5} />
      </svg>
    </figure>
  );
}

function highest(profile: BatchProfile, quantity: Quantity): number {
  const measured = Math.max(...profile.points.map(quantity.measured), 0);
  const model = most(profile.curve, quantity.of);
  const near = quantity.line !== null && quantity.line < 1.6 * model ? quantity.line : 0;
  return Math.max(measured, model, near, 1e-9);
}

/** Round batch sizes along the axis, as many as have room. */
function ticks(right: number, width: number): number[] {
  const count = Math.max(Math.floor((width - LEFT) / 64), 2);
  const rough = right / count;
  const scale = 10 ** Math.floor(Math.log10(rough));
  const size = Math.max(
    [1, 2, 5, 10].map((one) => one * scale).find((one) => one >= rough)!,
    1,
  );
  return Array.from({ length: Math.floor(right / size) }, (_, index) => (index + 1) * size);
}
