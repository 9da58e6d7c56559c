import type { JSX } from "preact";
import type { LivingRow, MemoryDevice } from "../../api/types";
import { bytes, duration, grouped } from "../../base/format";
import { shortLine } from "../../model/memory";
import { sum } from "../../model/table/field";
import type { MemoryState } from "../../state/memory";
import type { Store } from "../../state/store";
import { keptTable } from "../../state/tables";
import { WithAnswer } from "../../widgets/answer";
import {
  nameColumn,
  numberColumn,
  shareText,
  textColumn,
  type Column,
} from "../../widgets/table/column";
import { Table } from "../../widgets/table/table";
import { fileName } from "../file_name";
import { groupName, Swatch } from "./areas";
import { keyOf } from "./stack";

/** What lives at the chosen moment, the largest first. */
export function LivingTable(props: {
  store: Store;
  state: MemoryState;
  device: MemoryDevice;
}): JSX.Element {
  const { store, state, device } = props;
  return (
    <section class="memory-living" aria-label="What lives at the moment">
      <WithAnswer answer={state.moment}>
        {(value) => {
          const modules = value.living.some((one) => one.module);
          const lines = value.living.some((one) => one.line);
          const columns = columnsOf(value.used_bytes, modules, lines, device.lifetimes);
          return (
            <>
              <h2 class="pane-heading" aria-live="polite">
                {bytes(value.used_bytes)} live at {duration(value.time_ns)}
                {value.time_ns === device.peak_ns && ", the peak"}
                {store.host.live && <Within state={state} />}
              </h2>
              <Table
                caption={`What lives at ${duration(value.time_ns)}, the largest first`}
        kept={keptTable(store, "living")}
                file={fileName(store, `memory at ${value.time_ns} ns`)}
                columns={columns}
                rows={value.living}
                left={value.living_rows - value.living.length}
                keyOf={keyOf}
                views={VIEWS}
                sorting={LARGEST}
                marked={(row) => keyOf(row) === state.row.value || (row.module_id !== null && store.marks.value.modules.has(row.module_id))}
                onChoose={(row) => {
                  state.row.value = keyOf(row);
                  if (row.module_id !== null) void store.choosePart({ module: row.module_id });
                }}
                empty="Nothing is in use."
              />
            </>
          );
        }}
      </WithAnswer>
    </section>
  ); // prettier-ignore
}

/** The area that the rows are of, and the way back to all of them. */
function Within({ state }: { state: MemoryState }): JSX.Element | null {
  const [group, grouping] = [state.group.value, state.grouping.value];
  if (group === null || !grouping) return null;
  return (
    <>
      , of them {groupName(grouping.by, grouping.names[group]!)}{" "}
      <button type="button" class="link" onClick={() => state.set({ group: null })}>
        show all
      </button>
    </>
  );
}

const LARGEST = { column: "bytes", down: true };
const VIEWS = [
  { id: "rows", title: "Rows" },
  { id: "kind", title: "By kind", hint: "Totals by kind", groupBy: (row: LivingRow) => row.kind },
];

function columnsOf(
  used: number,
  modules: boolean,
  lines: boolean,
  counted: boolean,
): Column<LivingRow>[] {
  const share = (row: LivingRow): number => row.bytes / Math.max(used, 1);
  return [
    textColumn("kind", "kind", (row) => row.kind, { cell: (row) => <Kind name={row.kind} /> }),
    numberColumn("bytes", "size", (row) => row.bytes, bytes, {
      unit: "bytes",
      total: sum((row) => row.bytes),
    }),
    numberColumn("share", "share", share, shareText, {
      hint: "of what is in use",
      minor: true,
      total: sum(share),
    }),
    ...(counted ? [COUNT] : []),
    ...(modules
      ? [nameColumn("module", "module", moduleOf, { grows: true, minor: lines && "last" })]
      : []),
    ...(lines ? [nameColumn("line", "line", shortLineOf, { grows: true, full: lineOf })] : []),
  ];
}

const moduleOf = (row: LivingRow): string => row.module;
const lineOf = (row: LivingRow): string => row.line;
const shortLineOf = (row: LivingRow): string => shortLine(row.line);

const COUNT = numberColumn<LivingRow>("count", "allocations", (row) => row.count, grouped, {
  minor: true,
  total: sum((row) => row.count),
  cell: (row) => <span title={`the largest has ${bytes(row.largest)}`}>{grouped(row.count)}</span>,
});

function Kind({ name }: { name: string }): JSX.Element {
  return (
    <span class="memory-kind">
      <Swatch by="kind" name={name} position={0} /> {name}
    </span>
  );
}
