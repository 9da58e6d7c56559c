import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import type { Kernels } from "../../api/types";
import { words } from "../../base/format";
import { perStore } from "../../state/per_store";
import type { Store } from "../../state/store";
import { WithAnswer } from "../../widgets/answer";
import { Table } from "../../widgets/table";
import type { Pane } from "../pane";
import { columnsOf } from "./columns";
import { Roofline } from "./roofline";

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
  const filter = useSignal("");
  const wanted = filter.value.toLowerCase();
  const rows = wanted
    ? value.rows.filter((row) => row.name.toLowerCase().includes(wanted))
    : value.rows;
  const { kernels: marked } = store.marks.value;
  const { roofline } = store.view.value;
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
        <span class="tool-group" role="group" aria-label={`How to show ${value.are}`}>
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
        <span class="dim">{overSteps(value.steps)}</span>
      </div>
      {roofline ? (
        <Roofline store={store} value={value} rows={rows} />
      ) : (
        <Table
          caption={`${words(value.are)} by time`}
          columns={columnsOf(value.rows)}
          rows={rows}
          keyOf={(row) => row.name}
          sorting={{ column: "total", down: true }}
          marked={(row) => marked.has(row.name)}
          showKey={[...marked][0]}
          onChoose={(row) => void store.choosePart({ kernel: row.name })}
        />
      )}
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
