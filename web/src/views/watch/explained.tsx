import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import type { WatchAnswer, UnusualSteps } from "../../api/watch_types";
import { grouped, milliseconds, significant } from "../../base/format";
import { meansOf, OVERLAPS, PARTS } from "../../model/watched";
import { isOf, type WatchStore } from "../../state/watch";

/** A difference below this share of the step is noise. */
const NOTABLE = 0.01;
/** A recording may begin a few steps before what it shows: its first ones warm up. */
const EARLIER = 4;

/** What is known of the chosen slow steps, or of the chosen step. */
export function Explained({ store }: { store: WatchStore }): JSX.Element {
  const slow = store.slow.value;
  const { step } = store.view.value;
  if (!store.steps.length || (!slow && step === null))
    return (
      <p class="dim watch-hint">Click a step, or a slow stretch, to see what it consists of.</p>
    );
  return (
    <section class="watch-explained" aria-label="Explanation">
      {slow && <Stretch store={store} slow={slow} />}
      {step !== null && <Step store={store} step={step} />}
    </section>
  );
}

function Stretch({ store, slow }: { store: WatchStore; slow: UnusualSteps }): JSX.Element {
  const { answer, steps } = store;
  const mine = answer.value.recordings.filter(
    ([step]) => step >= slow.first - EARLIER && step <= slow.last,
  );
  const [these, others] = useMemo(() => {
    const all = answer.value.slow;
    const numbers = new Set(slow.numbers);
    const is = (place: number): boolean =>
      numbers.size ? numbers.has(steps.number[place]!) : isOf(slow, steps.number[place]!);
    const spans = all.filter((one) => !one.numbers.length);
    const usual = (place: number): boolean =>
      !is(place) && !spans.some((one) => isOf(one, steps.number[place]!));
    return [meansOf(steps, is), meansOf(steps, usual)];
  }, [answer.value, slow]);
  return (
    <div>
      <h2 class="pane-heading">
        {slow.cause}
        {slow.where && <span class="dim"> · {slow.where}</span>}
      </h2>
      <p class="watch-sentence">{answer.value.sentences[answer.value.slow.indexOf(slow)]}.</p>
      <p class="watch-actions">
        <button type="button" onClick={() => store.explain(slow)}>
          Show all of it
        </button>
        {mine.map((one) => (
          <Recording key={one[1]} recording={one} />
        ))}
        {!mine.length && <span class="dim">no recording of these steps is next to the file</span>}
      </p>
      <Means titles={["these steps", "other steps"]} these={these} others={others} />
    </div>
  );
}

/** The way to a recording; a file's page only names it. */
function Recording({ recording }: { recording: WatchAnswer["recordings"][number] }): JSX.Element {
  const [step, file, trace] = recording;
  if (trace)
    return <a href={`/index.html#trace=${trace}`}>Open the recording at step {grouped(step)}</a>;
  return (
    <span>
      Recorded at step {grouped(step)}: <code>stepscope view {file}</code>
    </span>
  );
}

/** All recordings beside the file. */
export function Recordings({ store }: { store: WatchStore }): JSX.Element | null {
  const { recordings } = store.answer.value;
  if (!recordings.length) return null;
  return (
    <p class="watch-recordings" aria-label="Recordings">
      {recordings.map((one) => (
        <Recording key={one[1]} recording={one} />
      ))}
    </p>
  );
}

function Step({ store, step }: { store: WatchStore; step: number }): JSX.Element {
  const { steps, answer } = store;
  const place = steps.placeOf(step);
  const one = useMemo(() => meansOf(steps, (at) => at === place), [steps, place]);
  const all = useMemo(() => meansOf(steps, () => true), [answer.value]);
  const times = steps.wallMs[place]! / (answer.value.usual_ms || 1);
  return (
    <div>
      <h2 class="pane-heading">
        Step {grouped(steps.number[place]!)}{" "}
        <span class="dim">
          {milliseconds(steps.wallMs[place]!)}, {significant(times)} times the usual{" "}
          {milliseconds(answer.value.usual_ms)}
        </span>
      </h2>
      <Means titles={["this step", "mean step"]} these={one} others={all} />
    </div>
  );
}

function Means(props: {
  titles: [string, string];
  these: Record<string, number>;
  others: Record<string, number>;
}): JSX.Element {
  const { titles, these, others } = props;
  const parts = PARTS.map(([field, stage, name]) => ({ field, stage, name }));
  const rest = (means: Record<string, number>): number =>
    Math.max(
      parts.reduce((left, { field }) => left - means[field]!, means.wall!),
      0,
    );
  const rows = [
    ...parts.map(({ field, stage, name }) => ({
      name,
      stage,
      mine: these[field]!,
      usual: others[field]!,
    })),
    { name: "the rest", stage: "none", mine: rest(these), usual: rest(others) },
    { name: "whole step", stage: "", mine: these.wall!, usual: others.wall! },
    ...OVERLAPS.map(([field, name]) => ({
      name: `${name}, in all`,
      stage: "",
      mine: these[field]!,
      usual: others[field]!,
    })),
  ].filter(({ mine, usual }) => Math.max(mine, usual) > 0.001 * others.wall!);
  return (
    <table class="table small watch-means">
      <caption class="unseen">Parts of {titles[0]}, ms a step</caption>
      <thead>
        <tr>
          <th scope="col">ms a step</th>
          <th scope="col" class="number">
            {titles[0]}
          </th>
          <th scope="col" class="number">
            {titles[1]}
          </th>
          <th scope="col" class="number">
            difference
          </th>
        </tr>
      </thead>
      <tbody>
        {rows.map(({ name, stage, mine, usual }) => {
          const more = mine - usual;
          const notable = Math.abs(more) > NOTABLE * others.wall!;
          const side = more > 0 ? "more" : "less";
          return (
            <tr key={name} class={name === "whole step" ? "strong" : ""}>
              <th scope="row">
                {stage && <span class={`swatch c-${stage}`} aria-hidden="true" />} {name}
              </th>
              <td class="number">{milliseconds(mine)}</td>
              <td class="number">{milliseconds(usual)}</td>
              <td class={`number ${notable ? `difference-${side}` : "dim"}`}>
                {notable ? `${more > 0 ? "+" : "−"}${milliseconds(Math.abs(more))}` : "same"}
              </td>
            </tr>
          );
        })}
      </tbody>
    </table>
  );
}
