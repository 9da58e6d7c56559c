import type { JSX } from "preact";
import type { KernelRow } from "../../api/types";
import { count, duration, milliseconds, percent, significant, words } from "../../base/format";
import { mainStage } from "../../model/roofline";
import { ShareBar } from "../../widgets/bars";
import type { Column } from "../../widgets/table";

export const NAME: Column<KernelRow> = {
  id: "name",
  title: "name",
  grows: true,
  value: (row) => row.short,
  cell: (row) => (
    <span class="name-cell" title={row.name}>
      <span class="name-text">{row.short}</span>
    </span>
  ),
};

const COLUMNS: Column<KernelRow>[] = [
  NAME,
  {
    id: "kind",
    title: "kind",
    minor: true,
    value: (row) => row.kind,
    cell: (row) => words(row.kind),
  },
  {
    id: "stage",
    title: "stage",
    value: (row) => mainStage(row),
    cell: (row) => words(mainStage(row)),
  },
  number("count", "count", "how often in a step", (row) => row.count, count),
  number("total", "total", "in a step", (row) => row.total_ms, milliseconds),
  {
    id: "share",
    title: "share",
    hint: "of all rows",
    numeric: true,
    value: (row) => row.share,
    cell: (row) => (
      <span class="share-cell">
        <ShareBar share={row.share} />
        {percent(row.share)}
      </span>
    ),
  },
  number("mean", "mean", "of one", (row) => row.mean_ns, duration),
  number("least", "least", "the fastest", (row) => row.least_ns, duration),
  number("most", "most", "the slowest", (row) => row.most_ns, duration),
];
const OCCUPANCY = number<KernelRow>(
  "occupancy", "occupancy", "estimated by the profiler", (row) => row.occupancy, percent,
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

/** No kernel is faster than its device: above 100 % something that was assumed is wrong. */
export function peakText(share: number): JSX.Element {
  return share > 1 ? <strong class="doubtful">{percent(share)} ⚠</strong> : <>{percent(share)}</>;
}

const WHY_ABOVE_PEAK: Record<string, string> = {
  compute:
    "above 100 %: the kernel probably computes in a faster precision than its inputs have (TF32, sparsity), or the device's clock is above the one of the peak rate",
  memory: "above 100 %: its inputs are probably still in the cache, or it skips a part of them",
};

/** `8.03 TFLOP/s, 83.1 GB/s; compute is the limit`. */
function rates(row: KernelRow): string {
  const moved = row.gbytes === null ? [] : [`${significant(row.gbytes)} GB/s`];
  const computed = row.tflops === null ? [] : [`${significant(row.tflops)} TFLOP/s`];
  const text = `${[...computed, ...moved].join(", ")}; ${row.limit} is the limit`;
  return (row.of_peak ?? 0) > 1 ? `${text}; ${WHY_ABOVE_PEAK[row.limit || "compute"]}` : text;
}

/** A column of numbers; nothing where the value is null. */
export function number<Row = KernelRow>(
  id: string,
  title: string,
  hint: string,
  value: (row: Row) => number | null,
  format: (value: number) => string,
): Column<Row> {
  const cell = (row: Row): string => {
    const found = value(row);
    return found === null ? "–" : format(found);
  };
  return { id, title, hint, numeric: true, value, cell };
}

/** The columns of a table of kernels: what is known of none of them is left out. */
export function columnsOf(rows: readonly KernelRow[]): Column<KernelRow>[] {
  return [
    ...COLUMNS,
    ...(rows.some((row) => row.of_peak !== null) ? [OF_PEAK] : []),
    ...(rows.some((row) => row.occupancy !== null) ? [OCCUPANCY] : []),
  ];
}
