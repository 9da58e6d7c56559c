import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { grouped, plural, spoken } from "../../base/format";
import { titleOf } from "../../base/sentences";
import type { WatchStore } from "../../state/watch";
import { toggleTheme } from "../../state/theme";
import { ThemeButton } from "../theme_button";
import { PAN_STEP, ZOOM_STEP } from "../timeline/gestures";
import { BillPanel } from "./bill";
import { Explained, Recordings } from "./explained";
import { Legend, pointer, Strip } from "./strip";

/** A watched run on one page: where its time went, and when. */
export function WatchPage({ store }: { store: WatchStore }): JSX.Element {
  useEffect(() => {
    const press = (event: KeyboardEvent): void => walk(store, event);
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, [store]);
  void store.version.value;
  const answer = store.answer.value;
  const { steps } = store;
  return (
    <>
      <Header store={store} />
      <main class="watch">
        <section class="watch-verdict" aria-label="Verdict">
          <p class="job-sentence">{titleOf(answer.verdict)}</p>
          <p>{answer.verdict.slice(titleOf(answer.verdict).length)}</p>
          {store.error.value && <p class="error-line">{store.error.value}</p>}
        </section>
        <div class="watch-body">
          <div class="watch-main">
            {steps.length ? (
              <>
                <Tools store={store} />
                <Strip store={store} />
                <Legend answer={answer} steps={steps} />
                <Recordings store={store} />
                <Explained store={store} />
              </>
            ) : (
              <p class="nothing">
                No step has ended yet.{store.follows && " The page follows the run."}
              </p>
            )}
          </div>
          <BillPanel store={store} />
        </div>
      </main>
    </>
  );
}

function Header({ store }: { store: WatchStore }): JSX.Element {
  const answer = store.answer.value;
  const kept =
    store.steps.length < answer.steps ? `, the latest ${grouped(store.steps.length)} here` : "";
  return (
    <header class="header">
      <h1 class="brand">stepscope</h1>
      <span class="trace-name" title={answer.facts.command}>
        {answer.name}
      </span>
      {answer.ranks.length > 1 && <Rank store={store} />}
      <span class="dim watch-state">
        {plural(answer.steps, "step")}
        {kept} in {spoken(answer.run_s)} · <State store={store} />
      </span>
      <span class="grow" />
      <ThemeButton title="Light or dark (l)" />
    </header>
  );
}

function State({ store }: { store: WatchStore }): JSX.Element {
  const { facts, written_s } = store.answer.value;
  const { outcome } = facts;
  if (outcome) return <>{outcome}</>;
  if (!store.follows) return <>still running, or killed</>;
  return <span class="watch-follows">following; written {spoken(written_s)} ago</span>;
}

function Rank({ store }: { store: WatchStore }): JSX.Element {
  const { ranks, facts } = store.answer.value;
  return (
    <label>
      <span class="dim">rank</span>{" "}
      <select
        aria-label="Rank"
        value={facts.rank}
        onChange={(event) => void store.openRank(Number(event.currentTarget.value))}
      >
        {ranks.map((one) => (
          <option key={one} value={one}>
            {one}
          </option>
        ))}
      </select>
    </label>
  );
}

function Tools({ store }: { store: WatchStore }): JSX.Element {
  const slow = store.answer.value.slow.length;
  return (
    <div class="watch-tools" role="toolbar" aria-label="Axis">
      <button type="button" class="icon" aria-label="Zoom in" title="Zoom in (w)" onClick={() => store.zoom(ZOOM_STEP ** 2, null)}>
        +
      </button>
      <button type="button" class="icon" aria-label="Zoom out" title="Zoom out (s)" onClick={() => store.zoom(ZOOM_STEP ** -2, null)}>
        −
      </button>
      <button type="button" title="All of the run (0)" disabled={!store.view.value.window} onClick={() => store.set({ window: null })}>
        Whole run
      </button>
      <button type="button" title="Slow steps before (p)" disabled={!slow} onClick={() => store.walkSlow(-1)}>
        ‹ slow
      </button>
      <button type="button" title="Slow steps after (n)" disabled={!slow} onClick={() => store.walkSlow(1)}>
        slow ›
      </button>
      <span class="dim watch-keys">
        wheel or w s: zoom · drag or a d: move · ← →: step · n p: slow steps · 0: whole run
      </span>
    </div>
  );
} // prettier-ignore

/** The keys of the timeline. */
const ACTIONS: Record<string, (store: WatchStore) => void> = {
  w: (store) => store.zoom(ZOOM_STEP, pointer.peek()),
  s: (store) => store.zoom(1 / ZOOM_STEP, pointer.peek()),
  a: (store) => store.pan(-PAN_STEP),
  d: (store) => store.pan(PAN_STEP),
  f: (store) => {
    const slow = store.slow.value;
    if (slow) store.explain(slow);
  },
  "0": (store) => store.set({ window: null }),
  n: (store) => store.walkSlow(1),
  p: (store) => store.walkSlow(-1),
  l: toggleTheme,
  Escape: (store) => store.set({ slow: "", step: null, mark: "" }),
};

const SHIFTED: Record<string, (store: WatchStore) => void> = {
  ArrowLeft: (store) => store.pan(-PAN_STEP),
  ArrowRight: (store) => store.pan(PAN_STEP),
  ArrowUp: (store) => store.zoom(ZOOM_STEP, pointer.peek()),
  ArrowDown: (store) => store.zoom(1 / ZOOM_STEP, pointer.peek()),
};

function walk(store: WatchStore, event: KeyboardEvent): void {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target instanceof HTMLSelectElement) return;
  const act = (event.shiftKey ? SHIFTED : ACTIONS)[event.key];
  if (!act || !store.steps.length) return;
  act(store);
  event.preventDefault();
}
