import type { JSX } from "preact";
import type { LivingRow, MemoryDevice } from "../../api/types";
import { bytes, duration, grouped, plural } from "../../base/format";
import { shortLine } from "../../model/memory";
import type { MemoryState } from "../../state/memory";
import type { Store } from "../../state/store";
import { WithAnswer } from "../../widgets/answer";
import { ShareBar } from "../../widgets/bars";
import type { Column } from "../../widgets/table/column";
import { BareTable } from "../../widgets/table/table";
import { groupName, shareOf, Swatch } from "./areas";

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
              <BareTable
                caption={`What lives at ${duration(value.time_ns)}, the largest first`}
                columns={columns}
                rows={value.living}
                keyOf={(row) => `${row.kind} ${row.module_id} ${row.line}`}
                sorting={{ column: "bytes", down: true }}
                marked={(row) => row.module_id !== null && store.marks.value.modules.has(row.module_id)}
                onChoose={(row) => {
                  if (row.module_id !== null) void store.choosePart({ module: row.module_id });
                }}
                empty="Nothing is in use."
              />
              {value.living_rows > value.living.length && (
                <p class="dim memory-more">
                  and {plural(value.living_rows - value.living.length, "smaller row")}
                </p>
              )}
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

function columnsOf(
  used: number,
  modules: boolean,
  lines: boolean,
  counted: boolean,
): Column<LivingRow>[] {
  const size: Column<LivingRow> = {
    id: "bytes",
    title: "size",
    numeric: true,
    value: (row) => row.bytes,
    cell: (row) => bytes(row.bytes),
  };
  const share: Column<LivingRow> = {
    id: "share",
    title: "share",
    hint: "of what is in use",
    numeric: true,
    minor: true,
    value: (row) => row.bytes,
    cell: (row) => (
      <span class="share-cell">
        <ShareBar share={row.bytes / Math.max(used, 1)} />
        {shareOf(row.bytes, used)}
      </span>
    ),
  };
  const count: Column<LivingRow> = {
    id: "count",
    title: "allocations",
    numeric: true,
    value: (row) => row.count,
    cell: (row) => (
      <span title={`the largest has ${bytes(row.largest)}`}>{grouped(row.count)}</span>
    ),
  };
  const kind: Column<LivingRow> = {
    id: "kind",
    title: "kind",
    value: (row) => row.kind,
    cell: (row) => (
      <span class="memory-kind">
        <Swatch by="kind" name={row.kind} position={0} /> {row.kind}
      </span>
    ),
  };
  return [
    size,
    share,
    ...(counted ? [count] : []),
    kind,
    ...(modules
      ? [
          text(
            "module",
            (row) => row.module,
            (row) => row.module,
          ),
        ]
      : []),
    ...(lines
      ? [
          text(
            "line",
            (row) => row.line,
            (row) => shortLine(row.line),
          ),
        ]
      : []),
  ];
}

function text(
  id: string,
  value: (row: LivingRow) => string,
  shown: (row: LivingRow) => string,
): Column<LivingRow> {
  return {
    id,
    title: id,
    grows: true,
    value,
    cell: (row) => (
      <span class="name-cell" title={value(row)}>
        <span class="name-text">{shown(row)}</span>
      </span>
    ),
  };
}
