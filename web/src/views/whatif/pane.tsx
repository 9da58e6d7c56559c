import { computed } from "@preact/signals";
import type { JSX } from "preact";
import type { Changes as Known, Refused, WhatIf } from "../../api/types";
import { missing, parseRequest } from "../../model/changes";
import { latest } from "../../state/latest";
import { perStore } from "../../state/per_store";
import type { Store } from "../../state/store";
import { WithAnswer } from "../../widgets/answer";
import type { Pane } from "../pane";
import { aloneOf, askedOf } from "./asked";
import { BestFound } from "./best";
import { ChangeList } from "./changes";
import { Figures } from "./figures";

/** Comes after the first answer, as it takes longer: every change is tried. */
const changesOf = perStore((store) =>
  latest(() => {
    const [client, asked] = [store.client.value, askedOf(store).value];
    return client && asked && store.host.live ? client.ask<Known>("changes", { ...asked }) : null;
  }),
);

/** What is switched on, but for what still waits for a parameter. */
const readyOf = perStore((store) =>
  computed(() => {
    const known = changesOf(store).value.value?.changes ?? [];
    const whole = (text: string): boolean =>
      !missing(
        text,
        known.find((one) => one.name === parseRequest(text).name),
      ).length;
    return store.view.value.changes.filter(whole).join("\n");
  }),
);

const answerOf = perStore((store) =>
  latest(() => {
    const [client, asked] = [store.client.value, askedOf(store).value];
    const changes = readyOf(store).value;
    if (!client || !asked) return null;
    return client.ask<WhatIf | Refused>("whatif", { ...asked, changes }).then(applied);
  }),
);

/** The answer; that there is none is what went wrong, to whoever looks. */
function applied(told: WhatIf | Refused): WhatIf {
  if (told.answer === null) throw new Error(told.reason);
  return told;
}

export const whatif: Pane = {
  id: "whatif",
  title: "What-if",
  hint: "Predict how changes would affect step time",
  View: ({ store }) => <Panel store={store} />,
};

function Panel({ store }: { store: Store }): JSX.Element {
  const answer = answerOf(store);
  return (
    <div class="whatif">
      {store.host.live ? <Changes store={store} /> : <Predicted store={store} />}
      <section
        class="whatif-answer"
        aria-label="Prediction"
        tabIndex={0}
        aria-busy={answer.value.loading}
      >
        <WithAnswer answer={answer} waiting="Building and simulating the dependency graph…">
          {(value) => (
            <Figures answer={value.answer}>
              {value.answer.changes.length > 0 && <InTimeline store={store} />}
            </Figures>
          )}
        </WithAnswer>
      </section>
    </div>
  );
}

/** Shows the step on screen above its prediction, or no longer. */
function InTimeline({ store }: { store: Store }): JSX.Element {
  const shown = store.view.value.over === "predicted";
  return (
    <button
      type="button"
      aria-pressed={shown}
      onClick={() => store.set({ over: shown ? "" : "predicted" })}
    >
      Predicted timeline
    </button>
  );
}

function Changes({ store }: { store: Store }): JSX.Element {
  const changes = changesOf(store);
  return (
    <section class="whatif-changes" aria-label="Changes" aria-busy={changes.value.loading}>
      <Ranks store={store} />
      <BestFound store={store} />
      <WithAnswer answer={changes} waiting="Checking which changes apply…">
        {(value) => <ChangeList store={store} known={value.changes} />}
      </WithAnswer>
    </section>
  );
}

/** The predictions that a file holds, to choose from. */
function Predicted({ store }: { store: Store }): JSX.Element {
  const chosen = store.view.value.changes.join("\n");
  return (
    <section class="whatif-changes" aria-label="Changes">
      <div class="whatif-head">
        <h2>Predicted in this file</h2>
      </div>
      <div class="whatif-list" role="radiogroup" aria-label="Predictions">
        {store.host.whatIfs.map((changes) => (
          <label key={changes} class="whatif-change whatif-choice">
            <input
              type="radio"
              name="whatif"
              checked={changes === chosen}
              onChange={() => store.set({ changes: changes.split("\n").filter(Boolean) })}
            />
            {changes ? changes.replaceAll("\n", ", then ") : "no change"}
          </label>
        ))}
      </div>
    </section>
  );
}

function Ranks({ store }: { store: Store }): JSX.Element | null {
  const alone = aloneOf(store);
  const ranks = store.overview.value.value?.ranks ?? [];
  if (ranks.length < 2) return null;
  return (
    <label class="whatif-ranks">
      For{" "}
      <select
        value={alone.value ? "one" : "all"}
        onChange={(event) => (alone.value = event.currentTarget.value === "one")}
      >
        <option value="all">all {ranks.length} ranks together</option>
        <option value="one">rank {store.scope.value?.rank} alone</option>
      </select>
    </label>
  );
}
