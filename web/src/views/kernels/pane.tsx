import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import type { KernelRow, Kernels } from "../../api/types";
import { words } from "../../base/format";
import { dotsOf } from "../../model/roofline";
import { perStore } from "../../state/per_store";
import type { Store } from "../../state/store";
import { keptTable } from "../../state/tables";
import { WithAnswer } from "../../widgets/answer";
import { TableBody } from "../../widgets/table/body";
import { TableTools } from "../../widgets/table/tools";
import { useTable } from "../../widgets/table/use_table";
import { fileName } from "../file_name";
import type { Pane } from "../pane";
import { columnsOf } from "./columns";
import { rateColumns, Roofline } from "./roofline";

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

function Rows({ store, value }: { store: Store; value: Kernels }): JSX.Element {
  const { roofline } = store.view.value;
  const { kernels: marked } = store.marks.value;
  const first = [...marked][0];
  const counted = useMemo(() => dotsOf(value.rows).map((dot) => dot.row), [value]);
  const columns = useMemo(
    () => (roofline ? rateColumns : columnsOf)(value.rows),
    [roofline, value],
  );
  const table = useTable<KernelRow>({
    caption: `${words(value.are)} by time`,
    kept: keptTable(store, roofline ? "roofline" : "kernels"),
    columns,
    rows: roofline ? counted : value.rows,
    keyOf,
    views: roofline ? ROWS : VIEWS,
    sorting: BY_TIME,
    noun: [value.are.replace(/s$/, ""), value.are],
    marked: (row) => marked.has(row.name),
    show: first === undefined ? null : { key: first, is: (row) => row.name === first },
    onChoose: (row) => void store.choosePart({ kernel: row.name }),
  });
  const pictures = <Pictures store={store} of={value.are} />;
  if (roofline && !counted.length)
    return (
      <div class="pane-column">
        <div class="pane-tools">{pictures}</div>
        <p class="nothing">
          This trace has no operation counts of its {value.are}: record it with the shapes of
          inputs, which stepscope run does and torch.profiler does with record_shapes=True.
        </p>
      </div>
    );
  return (
    <div class="pane-column">
      <TableTools table={table} file={fileName(store, value.are)}>
        {counted.length > 0 && pictures}
        <span class="dim">{overSteps(value.steps)}</span>
      </TableTools>
      {roofline ? (
        <Roofline store={store} value={value} table={table} />
      ) : (
        <TableBody table={table} />
      )}
    </div>
  );
}

const keyOf = (row: KernelRow): string => row.name;
const BY_TIME = { column: "total", down: true };
const ROWS = [{ id: "rows", title: "By name" }];
const VIEWS = [
  ...ROWS,
  { id: "kind", title: "By kind", hint: "Totals by kind", groupBy: (row: KernelRow) => words(row.kind) },
]; // prettier-ignore

/** A table or a plot. */
function Pictures({ store, of }: { store: Store; of: string }): JSX.Element {
  const { roofline } = store.view.value;
  return (
    <span class="tool-group" role="group" aria-label={`How to show ${of}`}>
      {[false, true].map((plot) => (
        <button
          key={String(plot)}
          type="button"
          data-action={plot ? "roofline" : "rows"}
          aria-pressed={plot === roofline}
          onClick={() => store.set({ roofline: plot })}
        >
          {plot ? "Roofline" : "Table"}
        </button>
      ))}
    </span>
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
