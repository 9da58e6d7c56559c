import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import type { KernelRow, Kernels } from "../api/types";
import { count, duration, milliseconds, percent, significant, words } from "../base/format";
import { perStore } from "../state/per_store";
import type { Store } from "../state/store";
import { WithAnswer } from "../widgets/answer";
import { ShareBar } from "../widgets/bars";
import { Table, type Column } from "../widgets/table";
import type { Pane } from "./pane";

const rowsOf = perStore((store) => store.scoped((client, scope) => client.kernels(scope)));

export const kernels: Pane = {
  id: "kernels",
  title: "Kernels",
  hint: "Device work by name",
  View: ({ store }) => (
    <WithAnswer answer={rowsOf(store)}>
      {(value) => <Rows store={store} value={value} />}
    </WithAnswer>
  ),
};

const COLUMNS: Column<KernelRow>[] = [
  {
    id: "name",
    title: "name",
    grows: true,
    value: (row) => row.short,
    cell: (row) => (
      <span class="name-cell" title={row.name}>
        <span class="name-text">{row.short}</span>
      </span>
    ),
  },
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
const OF_PEAK: Column<KernelRow> = {
  id: "of_peak",
  title: "of peak",
  hint: "time at the device's peak rate, as a share of the measured time",
  numeric: true,
  value: (row) => row.of_peak,
  cell: (row) =>
    row.of_peak === null ? "–" : <span title={rates(row)}>{peakText(row.of_peak)}</span>,
};

/** No kernel is faster than its device: above 100 % something that was assumed is wrong. */
function peakText(share: number): JSX.Element {
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
function number<Row = KernelRow>(
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

function mainStage(row: KernelRow): string {
  const most = Object.entries(row.stages).sort((a, b) => b[1] - a[1])[0];
  return most?.[0] ?? "";
}

function Rows({ store, value }: { store: Store; value: Kernels }): JSX.Element {
  const filter = useSignal("");
  const wanted = filter.value.toLowerCase();
  const rows = wanted
    ? value.rows.filter((row) => row.name.toLowerCase().includes(wanted))
    : value.rows;
  const { kernels: marked } = store.marks.value;
  const columns = [
    ...COLUMNS,
    ...(value.rows.some((row) => row.of_peak !== null) ? [OF_PEAK] : []),
    ...(value.rows.some((row) => row.occupancy !== null) ? [OCCUPANCY] : []),
  ];
  const first = [...marked][0];
  return (
    <div class="pane-column">
      <div class="pane-tools">
        <input
          type="search"
          placeholder={`Filter ${value.rows.length} ${value.are}`}
          aria-label={`Filter ${value.are}`}
          value={filter.value}
          onInput={(event) => (filter.value = event.currentTarget.value)}
        />
        <span class="dim">{overSteps(value.steps)}</span>
      </div>
      <Table
        caption={`${words(value.are)} by time`}
        columns={columns}
        rows={rows}
        keyOf={(row) => row.name}
        sorting={{ column: "total", down: true }}
        marked={(row) => marked.has(row.name)}
        showKey={first}
        onChoose={(row) => void store.choosePart({ kernel: row.name })}
      />
    </div>
  );
}

/** What figures are of: `of step 5`, `means over steps 5–10`. */
export function overSteps(numbers: number[]): string {
  return numbers.length === 1 ? `of step ${steps(numbers)}` : `means over steps ${steps(numbers)}`;
}

/** `5–10` where they follow each other. */
function steps(numbers: number[]): string {
  const [first, last] = [numbers[0], numbers.at(-1)];
  if (first === undefined || last === undefined) return "";
  const run = last - first === numbers.length - 1;
  return first === last ? String(first) : run ? `${first}–${last}` : numbers.join(", ");
}
