import { signal, type Signal } from "@preact/signals";
import type { JSX } from "preact";
import type { Best, BestChanges, Refused } from "../../api/types";
import { milliseconds, plural } from "../../base/format";
import { latest } from "../../state/latest";
import { perStore } from "../../state/per_store";
import type { Store } from "../../state/store";
import { WithAnswer } from "../../widgets/answer";
import { askedOf } from "./asked";

/** What the best changes were asked for; the search takes seconds, so it starts on request. */
type Budget = Record<"to" | "fits", string>;

const budgetOf = perStore((): Signal<Budget | null> => signal(null));

const bestOf = perStore((store) =>
  latest(() => {
    const [client, asked, budget] = [
      store.client.value,
      askedOf(store).value,
      budgetOf(store).value,
    ];
    if (!client || !asked || !budget) return null;
    return client.ask<BestChanges | Refused>("best", { ...asked, ...budget }).then((told) => {
      if (told.answer === null) throw new Error(told.reason);
      return told.answer;
    });
  }),
);

/** Searches for the changes that together make the step fastest, or reach a budget. */
export function BestFound({ store }: { store: Store }): JSX.Element {
  const best = bestOf(store);
  const ask = (event: Event): void => {
    event.preventDefault();
    const form = new FormData(event.currentTarget as HTMLFormElement);
    budgetOf(store).value = { to: String(form.get("to")), fits: String(form.get("fits")) };
  };
  return (
    <section class="whatif-best" aria-label="Best changes" aria-busy={best.value.loading}>
      <form class="whatif-head" onSubmit={ask}>
        <input
          name="to"
          inputMode="decimal"
          placeholder="goal, ms"
          aria-label="Goal in milliseconds"
        />
        <input name="fits" placeholder="GB or device" aria-label="Memory to fit into" />
        <button type="submit">Find best changes</button>
      </form>
      <WithAnswer answer={best} waiting={budgetOf(store).value ? "Predicting combinations…" : ""}>
        {(value) => <Found store={store} best={value} />}
      </WithAnswer>
    </section>
  );
}

function Found({ store, best }: { store: Store; best: Best }): JSX.Element {
  const changes = [...best.prediction.changes];
  return (
    <>
      <p role="status">{sentence(best)}</p>
      <ul class="whatif-assumptions">
        {best.parts.map((part) => (
          <li key={part.change}>
            {part.change}: {milliseconds(part.gain_ms)} more without it
          </li>
        ))}
      </ul>
      {changes.length > 0 && (
        <button type="button" class="chip" onClick={() => store.set({ changes })}>
          Switch them on
        </button>
      )}
    </>
  );
}

/** What the search gave, in one sentence. */
export function sentence(best: Best): string {
  const { changes, predicted_step_ms: then, replayed_step_ms: now } = best.prediction;
  const missed = best.reached === false ? "Nothing that was tried reaches the goal. " : "";
  if (!changes.length) return `${missed}No change saves more than its error.`;
  const fewer = best.same_samples_ms > 1.001 * then; // samples in a step than before
  const alike = fewer
    ? `, ${milliseconds(best.same_samples_ms)} for as many samples as before`
    : "";
  const times = `${milliseconds(then)} instead of ${milliseconds(now)}${alike}`;
  return `${missed}${changes.join(" + ")}: ${times}, of ${plural(best.tried, "combination")}.`;
}
