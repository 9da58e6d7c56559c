import type { JSX } from "preact";
import type { KernelRow } from "../../api/types";
import { count, duration, milliseconds, percent, significant, words } from "../../base/format";
import { mainStage } from "../../model/roofline";
import { least, mean, most, sum } from "../../model/table/field";
import {
  nameColumn,
  numberColumn,
  shareText,
  textColumn,
  type Column,
} from "../../widgets/table/column";

export const NAME = nameColumn<KernelRow>("name", "name", (row) => row.short, {
  grows: true,
  full: (row) => row.name,
});

const total = (row: KernelRow): number => row.total_ms;
const MEAN = mean<KernelRow>(
  (row) => row.mean_ns,
  (row) => row.count,
);

export const TOTAL = numberColumn("total", "total", total, milliseconds, {
  hint: "in a step",
  unit: "ms",
  total: sum(total),
});

const COLUMNS: Column<KernelRow>[] = [
  NAME,
  textColumn("kind", "kind", (row) => words(row.kind), { minor: true }),
  textColumn("stage", "stage", (row) => words(mainStage(row))),
  numberColumn("count", "count", (row) => row.count, count, {
    hint: "how often in a step",
    total: sum((row) => row.count),
  }),
  TOTAL,
  numberColumn("share", "share", (row) => row.share, shareText, {
    hint: "of all rows",
    total: sum((row) => row.share),
  }),
  time("mean", "of one", (row) => row.mean_ns, MEAN),
  time("least", "the fastest", (row) => row.least_ns, least((row) => row.least_ns)),
  time("most", "the slowest", (row) => row.most_ns, most((row) => row.most_ns)),
]; // prettier-ignore

function time(
  id: string,
  hint: string,
  value: (row: KernelRow) => number,
  total: Column<KernelRow>["total"],
): Column<KernelRow> {
  const minor = id === "mean" ? false : "last";
  return numberColumn(id, id, value, duration, { hint, unit: "ns", total: total!, minor });
}

const OCCUPANCY = numberColumn<KernelRow>(
  "occupancy", "occupancy", (row) => row.occupancy, percent, { hint: "estimated by the profiler" },
); // prettier-ignore
export const OF_PEAK: Column<KernelRow> = {
  id: "of_peak",
  title: "of peak",
  hint: "time at the device's peak rate, as a share of the measured time",
  numeric: true,
  value: (row) => row.of_peak,
  cell: (row) =>
    row.of_peak === null ? "–" : <span title={rates(row)}>{peakText(row.of_peak)}</span>,
};

/** No kernel is faster than its device: above 100% something that was assumed is wrong. */
export function peakText(share: number): JSX.Element {
  return share > 1 ? <strong class="doubtful">{percent(share)} ⚠</strong> : <>{percent(share)}</>;
}

const WHY_ABOVE_PEAK: Record<string, string> = {
  compute:
    "above 100%: the kernel probably computes in a faster precision than its inputs have (TF32, sparsity), or the device's clock is above the one of the peak rate",
  memory: "above 100%: its inputs are probably still in the cache, or it skips a part of them",
};

/** `8.03 TFLOP/s, 83.1 GB/s; compute is the limit`. */
function rates(row: KernelRow): string {
  const moved = row.gbytes === null ? [] : [`${significant(row.gbytes)} GB/s`];
  const computed = row.tflops === null ? [] : [`${significant(row.tflops)} TFLOP/s`];
  const text = `${[...computed, ...moved].join(", ")}; ${row.limit} is the limit`;
  return (row.of_peak ?? 0) > 1 ? `${text}; ${WHY_ABOVE_PEAK[row.limit || "compute"]}` : text;
}

/** The columns of a table of kernels: what is known of none of them is left out. */
export function columnsOf(rows: readonly KernelRow[]): Column<KernelRow>[] {
  return [
    ...COLUMNS,
    ...(rows.some((row) => row.of_peak !== null) ? [OF_PEAK] : []),
    ...(rows.some((row) => row.occupancy !== null) ? [OCCUPANCY] : []),
  ];
}
