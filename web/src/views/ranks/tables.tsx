import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import type { GroupRow, JobRank } from "../../api/ranks_types";
import { bytes, count, milliseconds, percent, significant, words } from "../../base/format";
import { mean, sum } from "../../model/table/field";
import { ALL, partName, type JobStore } from "../../state/job";
import { numberColumn, textColumn, type Column } from "../../widgets/table/column";
import { Table } from "../../widgets/table/table";

/** Every rank, for those who look for one by its name, and without a mouse. */
export function Ranks({ store }: { store: JobStore }): JSX.Element {
  const { job } = store;
  const columns = useMemo(() => rankColumns(store), [store]);
  const views = store.orders.includes("node") ? VIEWS : undefined;
  return (
    <section aria-label="Ranks" class="job-table">
      <h2 class="pane-heading">Ranks, medians over the steps</h2>
      <Table
        caption="Ranks"
        file={`${job.name}-ranks`}
        noun={["rank", "ranks"]}
        totals="Mean"
        columns={columns}
        rows={job.ranks}
        keyOf={rankOf}
        sorting={{ column: ALL, down: true }}
        {...(views && { views })}
        marked={(row) => row.rank === store.view.value.rank}
        onChoose={(row) => store.set({ rank: row.rank })}
      />
    </section>
  );
}

const rankOf = (row: JobRank): number => row.rank;
const VIEWS = [
  { id: "ranks", title: "Ranks" },
  { id: "node", title: "By node", hint: "Means over the ranks of each node", groupBy: nodeOf },
];

function nodeOf(row: JobRank): string {
  return row.node || "unknown node";
}

function rankColumns(store: JobStore): Column<JobRank>[] {
  const { job, own } = store;
  const place = (row: JobRank): number => store.placeOf(row.rank);
  return [
    textColumn("name", "rank", (row) => `rank ${row.rank}`, { cell: (row) => `rank ${row.rank}` }),
    ...(store.orders.includes("node")
      ? [textColumn<JobRank>("node", "node", (row) => row.node)]
      : []),
    ...store.shown.map((stage) => {
      const name = job.stages[stage]!;
      return average(name, partName(name), (row) => job.work[stage]![place(row)]!, { minor: true });
    }),
    average(ALL, ALL, (row) => own[place(row)]!),
    average("waiting", "waiting", (row) => row.waiting_ms, {
      hint: "for other ranks, and transfers",
    }),
    ...(job.ranks.some((row) => row.peak_bytes !== null)
      ? [
          numberColumn<JobRank>("peak", "peak memory", (row) => row.peak_bytes, bytes, {
            hint: "the most memory of its device that was allocated",
            unit: "bytes",
            total: mean(
              (row) => row.peak_bytes,
              () => 1,
            ),
          }),
        ]
      : []),
  ];
}

/** A time of each rank; of several ranks their mean. */
function average(
  id: string,
  title: string,
  value: (row: JobRank) => number,
  rest: Partial<Column<JobRank>> = {},
): Column<JobRank> {
  return time(id, title, value, { total: mean(value, () => 1), ...rest });
}

/** The collectives of the job by kind and parallel axis. */
export function Groups({ store }: { store: JobStore }): JSX.Element | null {
  const { groups, name } = store.job;
  if (!groups.length) return null;
  return (
    <section aria-label="Communication" class="job-table">
      <h2 class="pane-heading">Communication, per call</h2>
      <Table
        caption="Communication by kind and process groups"
        file={`${name}-communication`}
        columns={GROUP_COLUMNS}
        rows={groups}
        keyOf={(row) => `${row.kind} ${row.axis} ${row.members} ${row.scope}`}
        sorting={{ column: "total", down: true }}
        onChoose={(row) => store.set({ rank: row.last_rank })}
      />
    </section>
  );
}

const GROUP_COLUMNS: Column<GroupRow>[] = [
  textColumn("kind", "kind", (row) => row.kind),
  textColumn("axis", "axis", (row) => row.axis),
  numberColumn("groups", "groups", (row) => row.groups, count),
  numberColumn("ranks", "ranks", (row) => row.members, count, { hint: "of each group" }),
  textColumn("scope", "scope", (row) => row.scope),
  numberColumn("calls", "per step", (row) => row.calls, significant),
  time("total", "total", totalMs, {
    total: sum(totalMs),
    hint: "transfer and skew of all calls in a step",
  }),
  time("transfer", "transfer", (row) => row.transfer_ms, { hint: "once the last rank is there" }),
  time("skew", "skew", (row) => row.skew_ms, { hint: "from the first to the last arrival" }),
  numberColumn("bus", "bus GB/s", (row) => row.bus_gbs, significant, {
    hint: "as NCCL's tests define it",
  }),
  textColumn("last", "last to arrive", lastText, {
    hint: "the rank whose late arrivals cost the others most, how often it is last, and after what",
  }),
];

function totalMs(row: GroupRow): number {
  return row.calls * (row.transfer_ms + row.skew_ms);
}

function lastText(row: GroupRow): string {
  const stage = row.last_place.split(":")[0];
  const after = stage ? `, after ${words(stage)}` : "";
  return `rank ${row.last_rank} (${percent(row.last_share)}${after})`;
}

function time<Row>(
  id: string,
  title: string,
  value: (row: Row) => number,
  rest: Partial<Column<Row>> = {},
): Column<Row> {
  return numberColumn(id, title, value, milliseconds, { unit: "ms", ...rest });
}
