import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import type { ComparedParts, ComparedRow, ComparedRun, Difference } from "../api/types";
import { count, milliseconds, plural } from "../base/format";
import { change, changeShare, isCertain, partName, sentence } from "../model/difference";
import { latest } from "../state/latest";
import { choiceOf, othersOf } from "../state/pair";
import { perStore } from "../state/per_store";
import type { Store } from "../state/store";
import { keptTable } from "../state/tables";
import { WithAnswer } from "../widgets/answer";
import { nameColumn, type Column } from "../widgets/table/column";
import { Table } from "../widgets/table/table";
import { fileName } from "./file_name";
import type { Pane } from "./pane";
import { showOver } from "./timeline/pair";

const differenceOf = perStore((store) => {
  const choice = choiceOf(store);
  return latest(() => {
    const { against, itself, rank, againstRank } = choice.value;
    const client = store.client.value;
    if (!client || !against || rank === undefined) return null;
    const other = { against: itself ? undefined : against, against_rank: againstRank };
    return client.ask<Difference>("diff", { ...other, rank });
  });
});

export const compare: Pane = {
  id: "compare",
  title: "Compare",
  hint: "What became slower or faster than in another open trace or rank, and what is only noise",
  View: ({ store }) => (
    <div class="pane-column compare">
      <Tools store={store} value={differenceOf(store).value.value} />
      <WithAnswer answer={differenceOf(store)} waiting="Comparing…">
        {(value) => <Comparison store={store} value={value} />}
      </WithAnswer>
    </div>
  ),
};

const PARTS: [keyof ComparedParts, string][] = [
  ["time_use", "Time use"],
  ["stages", "Stages"],
  ["modules", "Modules"],
  ["operators", "Operators"],
  ["kernels", "Kernels"],
];

function Comparison({ store, value }: { store: Store; value: Difference }): JSX.Element {
  const asked = useSignal<keyof ComparedParts>("time_use");
  const drawn = store.view.value.over === "other";
  const parts = PARTS.filter(([part]) => value.parts[part].length > 0);
  const part = parts.some(([one]) => one === asked.value) ? asked.value : parts[0]?.[0];
  const rows = part ? value.parts[part] : NO_ROWS;
  const columns = useMemo(() => columnsOf(rows), [rows]);
  return (
    <>
      <p class="compare-verdict">{sentence(value)}</p>
      <Notes value={value} />
      <div class="pane-tools">
        <span class="tool-group" role="group" aria-label="Part of the step">
          <button
            type="button"
            data-part="steps"
            aria-pressed={drawn}
            title="The step on screen above one of the other side, in the timeline"
            onClick={() => showOver(store, drawn ? "" : "other")}
          >
            In the timeline
          </button>
          {parts.map(([one, title]) => (
            <button
              key={one}
              type="button"
              data-part={one}
              aria-pressed={one === part}
              onClick={() => (asked.value = one)}
            >
              {title} <span class="dim">{value.parts[one].length}</span>
            </button>
          ))}
        </span>
      </div>
      <Table
        key={part}
        caption="Parts of the step compared"
        kept={keptTable(store, "compare")}
        file={fileName(store, `compared ${part}`)}
        columns={columns}
        rows={rows}
        keyOf={keyOf}
        sorting={BY_CHANGE}
        onChoose={(row) => choose(store, part, row)}
        empty="Nothing to compare."
        tools={<span class="dim">medians over the steps{workOf(value, part)}</span>}
      />
    </>
  );
}

const NO_ROWS: ComparedRow[] = [];
const BY_CHANGE = { column: "change", down: true };
const keyOf = (row: ComparedRow): string => `${row.name} ${row.side}`;

/** Of which work the times are. */
function workOf(value: Difference, part: keyof ComparedParts | undefined): string {
  if (part !== "modules" && part !== "operators") return "";
  return value.on_device ? ", device time" : ", CPU time";
}

function Tools({ store, value }: { store: Store; value: Difference | null }): JSX.Element {
  const { against, itself, againstRank } = choiceOf(store).value;
  const own = store.overview.value.value?.ranks ?? [];
  const ranks = itself ? own : (value?.before.ranks ?? []);
  const { flame } = store.view.value;
  return (
    <div class="pane-tools">
      <label>
        Compare with{" "}
        <select
          aria-label="Compare with"
          value={against}
          onChange={(event) =>
            store.set({
              flame: { ...flame, against: event.currentTarget.value, zoom: null },
              againstRank: null,
            })
          }
        >
          {othersOf(store).map((one) => (
            <option key={one.id} value={one.id}>
              {one.name}
            </option>
          ))}
        </select>
      </label>
      {ranks.length > 1 && (
        <label>
          rank{" "}
          <select
            aria-label="Rank to compare with"
            value={String(againstRank ?? value?.before.rank)}
            onChange={(event) => store.set({ againstRank: Number(event.currentTarget.value) })}
          >
            {ranks.map((one) => (
              <option key={one} value={String(one)}>
                {one}
              </option>
            ))}
          </select>
        </label>
      )}
      {value && (
        <span class="dim">
          before: {runText(value.before)}; now{nameHere(store, against)}: {runText(value.after)}
        </span>
      )}
    </div>
  );
}

/** The trace on screen by its name, where another one is compared. */
function nameHere(store: Store, against: string): string {
  const here = store.client.value?.trace;
  const name = store.traces.value?.traces.find((one) => one.id === here)?.name;
  return name && here !== against ? ` (${name})` : "";
}

/** `Tesla V100, 6 steps, rank 1 of 2`. */
function runText(run: ComparedRun): string {
  const rank = run.world_size === "1" ? [] : [`rank ${run.rank} of ${run.world_size}`];
  return [run.device, plural(run.steps, "step"), ...rank].filter(Boolean).join(", ");
}

/** What makes the two hard to compare. */
function Notes({ value }: { value: Difference }): JSX.Element | null {
  const { before, after } = value;
  const differ = (["device", "framework", "world_size"] as const)
    .filter((one) => before[one] !== after[one])
    .map((one) => `different ${FACTS[one]}: ${before[one] || "unknown"} → ${after[one] || "unknown"}`); // prettier-ignore
  const which = { both: "steps", before: "steps before", now: "steps now" };
  const whose = before.inferred ? (after.inferred ? "both" : "before") : "now";
  const inferred =
    before.inferred || after.inferred
      ? [`${which[whose]} are inferred, as nothing marks them`]
      : [];
  const notes = [...differ, ...inferred];
  return notes.length ? <p class="note compare-notes">{notes.join(" · ")}</p> : null;
}

const FACTS = { device: "device", framework: "framework", world_size: "ranks" };

const VERDICTS: Record<ComparedRow["verdict"], [text: string, hint: string]> = {
  slower: ["slower", "significant at 99%"],
  faster: ["faster", "significant at 99%"],
  unclear: ["~ noise", "within step-to-step noise"],
  one_step: ["? one step", "one side has a single step, so nothing is known of its noise"],
  same: ["same", "the same times"],
  new: ["new", "not in the other trace"],
  gone: ["gone", "not in this trace"],
};

function columnsOf(rows: readonly ComparedRow[]): Column<ComparedRow>[] {
  const most = Math.max(...rows.map((row) => Math.abs(row.change_ms)), 1e-9);
  return [
    nameColumn("name", "name", partName, { grows: true, full: (row) => row.name }),
    timeColumn("before", "before", (row) => row.before),
    timeColumn("after", "now", (row) => row.after),
    {
      id: "change",
      title: "change",
      hint: "of the medians; sorted by its size",
      numeric: true,
      unit: "ms",
      value: (row) => Math.abs(row.change_ms),
      full: (row) => row.change_ms,
      cell: (row) => (
        <span class={isCertain(row) ? "" : "dim"}>
          <span
            class={`change-bar ${isCertain(row) ? (row.change_ms > 0 ? "more" : "less") : ""}`}
            style={{ width: `${(40 * Math.abs(row.change_ms)) / most}px` }}
            aria-hidden="true"
          />
          {change(row.change_ms)}
        </span>
      ),
    },
    {
      id: "share",
      title: "ratio",
      hint: "change as a share of the time before",
      numeric: true,
      value: (row) => row.ratio ?? Infinity,
      full: (row) => row.ratio,
      cell: (row) => <span class={isCertain(row) ? "" : "dim"}>{changeShare(row)}</span>,
    },
    {
      id: "verdict",
      title: "verdict",
      value: (row) => VERDICTS[row.verdict][0],
      cell: (row) => <span title={VERDICTS[row.verdict][1]}>{VERDICTS[row.verdict][0]}</span>,
    },
    {
      id: "calls",
      title: "calls",
      hint: "calls per step, before and now where they differ",
      minor: true,
      value: (row) => row.after?.count ?? row.before?.count ?? 0,
      cell: callsText,
    },
  ];
}

function timeColumn(
  id: string,
  title: string,
  side: (row: ComparedRow) => ComparedRow["before"],
): Column<ComparedRow> {
  return {
    id,
    title,
    hint: "median over the steps",
    unit: "ms",
    numeric: true,
    value: (row) => side(row)?.median_ms ?? 0,
    full: (row) => side(row)?.median_ms ?? null,
    cell: (row) => {
      const time = side(row);
      if (!time) return "–";
      const range = `${milliseconds(time.least_ms)} to ${milliseconds(time.most_ms)} over the steps`;
      return <span title={range}>{milliseconds(time.median_ms)}</span>;
    },
  };
}

function callsText({ before, after }: ComparedRow): string {
  const [was, is] = [before?.count ?? null, after?.count ?? null];
  if (was === null || is === null || was === is) return calls(is ?? was);
  return `${count(was)} → ${count(is)}`;
}

function calls(value: number | null): string {
  return value === null ? "–" : count(value);
}

/** Goes to a part, where it is in the trace on screen. */
function choose(store: Store, part: keyof ComparedParts | undefined, row: ComparedRow): void {
  if (part === "kernels" && row.after) void store.choosePart({ kernel: row.name });
  else if (row.module >= 0) void store.choosePart({ module: row.module });
}
