import { computed, signal, type Signal } from "@preact/signals";
import type { Pair, TraceEntry } from "../api/types";
import { stepOf } from "../base/path";
import type { Spot } from "../model/pair";
import { typicalStep } from "../model/steps";
import { latest } from "./latest";
import { perStore } from "./per_store";
import type { Store } from "./store";
import type { Over } from "./url";

/** What a trace can be compared with: another open one, or itself where it has several ranks. */
export function othersOf(store: Store): { id: string; name: string }[] {
  const here = store.client.value?.trace;
  const open = (store.traces.value?.traces ?? []).filter(isToBeHad);
  const others = open.filter((one) => one.id !== here);
  const ranks = store.overview.value.value?.ranks.length ?? 1;
  const itself = open.filter((one) => one.id === here && ranks > 1);
  return [...others, ...itself.map(({ id }) => ({ id, name: "another rank of this trace" }))];
}

/** Whether a trace is read and has steps, or will be when it is asked for, or was compared in advance. */
function isToBeHad({ state, has_steps }: TraceEntry): boolean {
  return has_steps && (state === "ready" || state === "closed" || state === "compared");
}

/** With what the trace on screen is compared, in the timeline as in the panes. */
export const choiceOf = perStore((store) =>
  computed(() => {
    const others = othersOf(store);
    const { flame, againstRank: asked } = store.view.value;
    const chosen = others.find((one) => one.id === flame.against) ?? others[0];
    const itself = chosen?.id === store.client.value?.trace;
    const rank = store.scope.value?.rank;
    const ranks = store.overview.value.value?.ranks ?? [];
    const other = itself ? ranks.find((one) => one !== rank) : undefined;
    const otherRank = itself && asked === rank ? other : (asked ?? other);
    return { against: chosen?.id ?? "", itself, rank, againstRank: otherRank };
  }),
);

/** The step to open first: the slowest; above another run the typical one, as medians are compared. */
export function firstStep(store: Store, over: Over): string {
  const { start = "", rank = 0, steps = [], facts } = store.overview.value.value ?? {};
  if (over !== "other" || !store.host.live) return start; // a file has one step
  return typicalStep(steps, rank, facts?.steps.numbers ?? [])?.id ?? start;
}

/** As many rectangles as the server tells, for looking closely; a file holds fewer. */
const MOST_RECTANGLES = 20_000;

/** The step on screen, or the one to open first, above what the view names. */
export const pairOf = perStore((store) =>
  latest(() => {
    const { over, changes, path } = store.view.value;
    const [client, at] = [store.client.value, stepOf(path || firstStep(store, over))];
    if (!client || !at || !over) return null;
    const most = store.host.live ? MOST_RECTANGLES : undefined;
    if (over === "predicted") {
      if (!changes.length) return null;
      return client.ask<Pair>("pair", { ...at, most, changes: changes.join("\n") });
    }
    const { against, itself, againstRank } = choiceOf(store).value;
    const other = { against: itself ? undefined : against, against_rank: againstRank };
    return against ? client.ask<Pair>("pair", { ...at, most, ...other }) : null;
  }),
);

/** The piece that is selected in the pair on screen. */
export const selectedPiece = perStore((): Signal<Spot | null> => signal(null));
