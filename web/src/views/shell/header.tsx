import type { JSX } from "preact";
import { stepOf } from "../../base/path";
import type { Store } from "../../state/store";
import { ThemeButton } from "../theme_button";
import { sharesOf } from "../share";
import { SearchBox } from "./search";

export function Header({ store }: { store: Store }): JSX.Element {
  return (
    <header class="header">
      <h1 class="brand">stepscope</h1>
      {store.traces.value?.whole && <a href="/">{store.traces.value.whole}</a>}
      <TracePicker store={store} />
      <RankPicker store={store} />
      <Framework store={store} />
      <span class="grow" />
      {!store.stepless.value && (
        <>
          <SearchBox store={store} />
          <OneStep store={store} />
        </>
      )}
      <ShareMenu store={store} />
      <ThemeButton title="Light or dark (l)" />
      <button
        type="button"
        class="icon"
        title="Keys and terms (?)"
        aria-label="Keys and terms"
        onClick={() => (store.helpShown.value = true)}
      >
        ?
      </button>
    </header>
  );
}

/** Ways to show somebody what is on screen. */
function ShareMenu({ store }: { store: Store }): JSX.Element {
  const shares = sharesOf(store);
  return (
    <select
      class="share"
      aria-label="Share"
      value=""
      onChange={(event) => {
        const { value } = event.currentTarget;
        event.currentTarget.value = "";
        shares.find((one) => one.name === value)?.run();
      }}
    >
      <option value="" disabled hidden>
        Share
      </option>
      {shares.map(({ name }) => (
        <option key={name}>{name}</option>
      ))}
    </select>
  );
}

function OneStep({ store }: { store: Store }): JSX.Element {
  return (
    <label
      class="switch"
      title="Tables and overview for the step on screen, not means over all steps (m)"
    >
      <input
        type="checkbox"
        checked={store.view.value.oneStep}
        onChange={(event) => store.set({ oneStep: event.currentTarget.checked })}
      />
      This step only
    </label>
  );
}

function TracePicker({ store }: { store: Store }): JSX.Element | null {
  const all = (store.traces.value?.traces ?? []).filter((one) => one.state !== "compared");
  const now = store.entry.value;
  if (all.length < 2)
    return now ? (
      <span class="trace-name" title={now.path}>
        {now.name}
      </span>
    ) : null;
  return (
    <select
      aria-label="Trace"
      value={now?.id}
      onChange={(event) => store.openTrace(event.currentTarget.value)}
    >
      {all.map((one) => (
        <option key={one.id} value={one.id}>
          {one.name}
          {STATES[one.state]}
        </option>
      ))}
    </select>
  );
}

const STATES = { ready: "", closed: "", failed: " (failed)", loading: " (loading)", compared: "" };

/** The rank whose step is on screen. */
function RankPicker({ store }: { store: Store }): JSX.Element | null {
  const value = store.overview.value.value;
  if (!value || value.ranks.length < 2) return null;
  const now = stepOf(store.view.value.path ?? "") ?? stepOf(value.start);
  return (
    <label>
      <span class="dim">rank</span>{" "}
      <select
        aria-label="Rank"
        value={now?.rank}
        onChange={(event) => store.showRank(Number(event.currentTarget.value))}
      >
        {value.ranks.map((one) => (
          <option key={one} value={one}>
            {one}
          </option>
        ))}
      </select>
    </label>
  );
}

function Framework({ store }: { store: Store }): JSX.Element | null {
  const { facts, ranks } = store.overview.value.value ?? {};
  if (!facts || !ranks) return null;
  const parts = [facts.framework, facts.devices[0]?.name].filter(Boolean);
  if (facts.world_size > 1) parts.push(ranksText(ranks, facts.world_size));
  return <span class="dim framework">{parts.join(" · ")}</span>;
}

/** `8 ranks`, `rank 3 of 8`, `3 of 8 ranks`: what of a job is here. */
function ranksText(ranks: number[], size: number): string {
  if (ranks.length === 1) return `rank ${ranks[0]} of ${size}`;
  return ranks.length < size ? `${ranks.length} of ${size} ranks` : `${size} ranks`;
}
