import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import type { ArrivalMatrix, ArrivalRow } from "../api/types";
import { count, milliseconds, percent } from "../base/format";
import { heatOfExcess, type Heat } from "../model/heat";
import { perStore } from "../state/per_store";
import { spot, type Store } from "../state/store";
import { keptTable } from "../state/tables";
import { WithAnswer } from "../widgets/answer";
import { numberColumn, textColumn, type Column } from "../widgets/table/column";
import { Table } from "../widgets/table/table";
import { fileName } from "./file_name";
import { HeatLegend, HeatMap } from "./heat_map";
import { overSteps } from "./kernels/pane";

const matrixOf = perStore((store) => store.scoped((client, scope) => client.arrivals(scope)));

/** Collectives by rank: who arrives last at each, and who waits. */
export function ArrivalsByRank({ store }: { store: Store }): JSX.Element {
  return (
    <WithAnswer answer={matrixOf(store)}>
      {(value) => <Matrix store={store} value={value} />}
    </WithAnswer>
  );
}

function Matrix({ store, value }: { store: Store; value: ArrivalMatrix }): JSX.Element {
  const { ranks, rows, step_ms } = value;
  const heat = useMemo(() => heatOf(value), [value]);
  const order = useMemo(() => ranks.map((_, place) => place), [ranks]);
  const chosen = ranks.indexOf(store.scope.value?.rank ?? -1);
  const walk = (by: number): void => {
    const next = Math.min(Math.max(chosen + by, 0), ranks.length - 1);
    store.showRank(ranks[next]!);
  };
  const rowPx = Math.min(Math.max(Math.floor(MAP_PX / Math.max(rows.length, 1)), 6), 18);
  return (
    <>
      <div class="pane-line arrival-map">
        <HeatLegend most={heat.most} sides={SIDES} />
        <HeatMap
          label="Ranks by collective"
          heat={heat}
          order={order}
          runs={order.map((place) => ({ name: `${ranks[place]}`, from: place, to: place + 1 }))}
          rowPx={rowPx}
          namedEvery={Math.ceil(16 / rowPx)}
          marked={NONE}
          chosen={chosen}
          nameOf={(place) => `rank ${ranks[place]}`}
          whole={step_ms}
          sides={SIDES}
          onChoose={(place) => store.showRank(ranks[place]!)}
          onWalk={walk}
        />
      </div>
      <Table
        caption="Collectives by who arrives last"
        kept={keptTable(store, "arrivals")}
        file={fileName(store, "arrivals")}
        columns={COLUMNS}
        rows={rows}
        keyOf={nameOf}
        noun={["collective", "collectives"]}
        left={value.left}
        onChoose={(row) => goTo(store, row)}
        empty="The trace holds no collective of several ranks in these steps."
        tools={<span class="dim">{overSteps(value.steps)}</span>}
      />
    </>
  );
}

const MAP_PX = 160;
const NONE: ReadonlySet<number> = new Set();
const SIDES = ["later", "earlier"] as const;

function heatOf({ rows, step_ms }: ArrivalMatrix): Heat {
  const late = rows.map((row) => row.late_ms.map((ms) => (ms ?? NaN) / (step_ms || 1)));
  return heatOfExcess(rows.map(nameOf), late);
}

/** `allreduce #3`, `allreduce default_pg`. */
function nameOf({ kind, groups, nth }: ArrivalRow): string {
  return [kind, groups, nth === null ? "" : `#${nth}`].filter(Boolean).join(" ");
}

const COLUMNS: Column<ArrivalRow>[] = [
  textColumn("name", "collective", nameOf),
  numberColumn("calls", "count", (row) => row.calls, count, { hint: "in a step" }),
  textColumn("last", "last to arrive", (row) => `rank ${row.last_rank}`, {
    hint: "the rank for which the others wait most often",
    strong: true,
  }),
  numberColumn("share", "of them", (row) => row.last_share, percent, {
    hint: "the share of these collectives at which it arrives last",
  }),
  textColumn("waits", "waits longest", (row) => `rank ${row.waiting_rank}`, {
    hint: "the rank that was there first; it is not the slow one",
  }),
  numberColumn("wait", "waiting", (row) => row.wait_ms, milliseconds, {
    hint: "how long that rank waits in a step until the last one arrives",
    unit: "ms",
  }),
];

/** To the call of the rank that arrives last. */
function goTo(store: Store, row: ArrivalRow): void {
  void store.goWhere(async (client) => {
    const place = await client.placeOf(row.event);
    return spot(place.level, place.path);
  });
}
