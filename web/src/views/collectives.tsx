import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import type { Arrival, CollectiveRow, Collectives } from "../api/types";
import { bytes, count, milliseconds, percent, plural, significant, words } from "../base/format";
import { ends } from "../model/heat";
import { mainStage } from "../model/roofline";
import { sum } from "../model/table/field";
import { perStore } from "../state/per_store";
import { spot, type Store } from "../state/store";
import { keptTable } from "../state/tables";
import { WithAnswer } from "../widgets/answer";
import { numberColumn, shareText, textColumn, type Column } from "../widgets/table/column";
import { Table } from "../widgets/table/table";
import { ArrivalsByRank } from "./arrivals";
import { fileName } from "./file_name";
import { overSteps } from "./kernels/pane";
import type { Pane } from "./pane";

const answerOf = perStore((store) => store.scoped((client, scope) => client.collectives(scope)));

/** Communication between ranks: what it moves, what hides it, and who comes late. */
export const collectives: Pane = {
  id: "collectives",
  title: "Collectives",
  hint: "Communication by kind and by rank, how much of it is exposed, and who comes late",
  View: ({ store }) => (
    <WithAnswer answer={answerOf(store)}>
      {(value) => <Rows store={store} value={value} />}
    </WithAnswer>
  ),
};

function Rows({ store, value }: { store: Store; value: Collectives }): JSX.Element {
  const together = value.arrivals.length > 1;
  const { byRank } = store.view.value;
  return (
    <div class={`pane-column${together && byRank ? " flows" : ""}`}>
      <p class="pane-line">
        {sentence(value)} {together && <Views store={store} />}
      </p>
      <Arrivals store={store} value={value} />
      {together && byRank ? (
        <ArrivalsByRank store={store} />
      ) : (
        <Kinds store={store} value={value} />
      )}
    </div>
  );
}

function Views({ store }: { store: Store }): JSX.Element {
  const { byRank } = store.view.value;
  return (
    <span class="tool-group" role="group" aria-label="How to show collectives">
      {[false, true].map((ranks) => (
        <button
          key={String(ranks)}
          type="button"
          data-action={ranks ? "by-rank" : "by-kind"}
          aria-pressed={ranks === byRank}
          onClick={() => store.set({ byRank: ranks })}
        >
          {ranks ? "By rank" : "By kind"}
        </button>
      ))}
    </span>
  );
}

function Kinds({ store, value }: { store: Store; value: Collectives }): JSX.Element {
  const columns = useMemo(() => columnsOf(value), [value]);
  return (
    <Table
      caption="Collectives by exposed time"
      kept={keptTable(store, "collectives")}
      file={fileName(store, "collectives")}
      columns={columns}
      rows={value.rows}
      keyOf={keyOf}
      sorting={BY_EXPOSED}
      onChoose={(row) => goTo(store, row)}
      empty="This rank does not communicate in these steps."
      tools={<span class="dim">{overSteps(value.steps)}</span>}
    />
  );
}

const BY_EXPOSED = { column: "exposed", down: true };
const keyOf = (row: CollectiveRow): string => `${row.kind} ${row.group} ${row.ranks}`;

function sentence({ rank, total_ms, exposed_ms, step_ms }: Collectives): string {
  const share = percent(exposed_ms / (step_ms || 1));
  return `Rank ${rank} communicates for ${milliseconds(total_ms)} of a step; ${milliseconds(exposed_ms)} (${share} of the step) is exposed.`;
}

/** The ranks from the latest to the one that waits longest; one click shows a rank. */
function Arrivals({ store, value }: { store: Store; value: Collectives }): JSX.Element | null {
  const { arrivals, step_ms } = value;
  const job = store.facts.value.value?.job;
  const [latest, first] = [arrivals[0], arrivals.at(-1)];
  if (!latest || !first || arrivals.length < 2) return null;
  const notable = latest.late_ms > LEAST_LATE * step_ms;
  const [late, early] = ends(arrivals, MOST_CHIPS);
  const left = arrivals.length - late.length - early.length;
  return (
    <div class="pane-line arrivals">
      <span>
        {job && <strong>{job.sentences[0]} </strong>}
        {notable ? (
          <>
            Rank {latest.rank} arrives latest: {milliseconds(latest.late_ms)} per step after the
            median rank. Rank {first.rank} waits longest.
          </>
        ) : (
          "No rank arrives much later than the others."
        )}
      </span>
      {!store.view.value.byRank && (
        <ul aria-label="Ranks by arrival">
          {late.map((one) => (
            <RankChip key={one.rank} {...{ store, value, one }} />
          ))}
          {left > 0 && <li class="dim">{plural(left, "rank")} between</li>}
          {early.map((one) => (
            <RankChip key={one.rank} {...{ store, value, one }} />
          ))}
        </ul>
      )}
    </div>
  );
}

function RankChip(props: { store: Store; value: Collectives; one: Arrival }): JSX.Element {
  const { store, value, one } = props;
  return (
    <li>
      <button
        type="button"
        class="chip"
        aria-pressed={one.rank === value.rank}
        title="Show this rank"
        onClick={() => store.showRank(one.rank)}
      >
        rank {one.rank} {signed(one.late_ms)}
      </button>
    </li>
  );
}

const MOST_CHIPS = 32;
const LEAST_LATE = 0.02;

/** `+4.28 ms`, `−312 µs`. */
function signed(ms: number): string {
  return `${ms < 0 ? "−" : "+"}${milliseconds(Math.abs(ms))}`;
}

function goTo(store: Store, row: CollectiveRow): void {
  void store.goWhere(async (client) => {
    const place = await client.placeOf(row.longest_event);
    return spot(place.level, place.path);
  });
}

/** What is known of no row is left out. */
function columnsOf({ rows, step_ms, arrivals }: Collectives): Column<CollectiveRow>[] {
  const share = (row: CollectiveRow): number => row.exposed_ms / (step_ms || 1);
  const together = arrivals.length > 1;
  const known = (value: (row: CollectiveRow) => unknown): boolean =>
    rows.some((row) => value(row) !== null && value(row) !== "");
  const columns: (Column<CollectiveRow> | false)[] = [
    textColumn("kind", "kind", (row) => row.kind),
    known((row) => row.group) && textColumn("group", "group", (row) => row.group),
    known((row) => row.ranks) && textColumn("ranks", "ranks", (row) => row.ranks, { minor: true }),
    known((row) => row.members) &&
      numberColumn("members", "members", (row) => row.members, count, { hint: "ranks of the group", minor: "last" }),
    textColumn("stage", "stage", (row) => words(mainStage(row))),
    numberColumn("count", "count", (row) => row.count, count, {
      hint: "calls in a step",
      total: sum((row) => row.count),
    }),
    known((row) => row.bytes) &&
      numberColumn("bytes", "bytes", (row) => row.bytes, bytes, { hint: "of the median call", unit: "B" }),
    time("total", "total", (row) => row.total_ms, "in a step, with the wait for other ranks", true),
    time("exposed", "exposed", (row) => row.exposed_ms, "in a step, while the rank computes nothing", true),
    numberColumn("share", "share", share, shareText, { hint: "exposed, of the step", total: sum(share) }),
    known((row) => row.wait_ms) &&
      time("wait", "waiting", (row) => row.wait_ms, "in a step, until the last rank arrives", true),
    time("transfer", together ? "transfer" : "one call", (row) => row.transfer_ms, together ? "of the median call, once the last rank is there" : "the median call, with the wait for other ranks", false),
    known((row) => row.algorithm_gbs) &&
      numberColumn("algorithm", "algorithm GB/s", (row) => row.algorithm_gbs, significant, {
        hint: rateHint("bytes over time", together),
        minor: true,
      }),
    known((row) => row.bus_gbs) &&
      numberColumn("bus", "bus GB/s", (row) => row.bus_gbs, significant, {
        hint: rateHint("as NCCL's tests define it", together),
      }),
    known((row) => row.last_rank) &&
      textColumn("last", "last to arrive", lastText, {
        hint: "the rank that most often arrives last, and at which share of the calls",
      }),
  ]; // prettier-ignore
  return columns.filter((one) => one !== false);
}

/** Without the other ranks nothing says when the last of them arrives. */
function rateHint(what: string, together: boolean): string {
  return together ? what : `${what}; at least, since the time includes the wait for other ranks`;
}

function time(
  id: string,
  title: string,
  value: (row: CollectiveRow) => number | null,
  hint: string,
  adds: boolean,
): Column<CollectiveRow> {
  const total = sum((row: CollectiveRow) => value(row) ?? 0);
  return numberColumn(id, title, value, milliseconds, { hint, unit: "ms", ...(adds && { total }) });
}

function lastText({ last_rank, last_share }: CollectiveRow): string {
  return last_rank === null ? "–" : `rank ${last_rank} (${percent(last_share ?? 0)})`;
}
