import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import type { Store } from "../../state/store";
import { ErrorLine } from "../../widgets/answer";
import { Splitter } from "../../widgets/splitter";
import { Tabs } from "../../widgets/tabs";
import { DetailsPane } from "../details";
import { flame } from "../flame";
import { PANES } from "../index";
import { Timeline } from "../timeline/timeline";
import { Header } from "./header";
import { Help } from "./help";
import { pressed } from "./keys";
import { Waiting } from "./waiting";

const NOTICE_MS = 6000;

/** The whole page: the timeline, the panes below it, and the details of what is chosen beside both. */
export function Shell({ store }: { store: Store }): JSX.Element {
  useEffect(() => {
    const press = (event: KeyboardEvent): void => pressed(store, event);
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
  if (!store.client.value) return <Waiting store={store} />;
  const { error } = store.overview.value;
  if (error)
    return (
      <div class="shell">
        <Header store={store} />
        <main class="alone">
          <ErrorLine text={error} />
          <flame.View store={store} />
        </main>
        <Notice store={store} />
      </div>
    );
  return (
    <div class="shell">
      <Header store={store} />
      <main class="main">
        <Left store={store} />
        <DetailsPane store={store} />
      </main>
      <Foot store={store} />
      <Help store={store} />
      <Notice store={store} />
    </div>
  );
}

function Left({ store }: { store: Store }): JSX.Element {
  const share = useSignal(0.54);
  const pane = PANES.find((one) => one.id === store.view.value.pane) ?? PANES[0]!;
  return (
    <div
      class="left"
      style={{
        gridTemplateRows: `minmax(0, ${share.value}fr) auto minmax(0, ${1 - share.value}fr)`,
      }}
    >
      <Timeline store={store} />
      <Splitter
        label="Height of the timeline"
        along="y"
        share={share.value}
        onMove={(to) => (share.value = to)}
      />
      <section class="dock" aria-label="Panes">
        <Tabs
          tabs={PANES}
          chosen={pane.id}
          panel="pane"
          onChoose={(id) => store.set({ pane: id })}
        />
        <div
          id="pane"
          class="pane"
          role="tabpanel"
          aria-labelledby={`tab-${pane.id}`}
          data-pane={pane.id}
        >
          <pane.View key={pane.id} store={store} />
        </div>
      </section>
    </div>
  );
}

/** What a single file leaves out. */
function Foot({ store }: { store: Store }): JSX.Element | null {
  const { leftOut } = store.host;
  return leftOut.length ? (
    <footer class="foot">This file leaves out {leftOut.join("; ")}.</footer>
  ) : null;
}

function Notice({ store }: { store: Store }): JSX.Element | null {
  const text = store.notice.value;
  useEffect(() => {
    const timer = setTimeout(() => (store.notice.value = ""), NOTICE_MS);
    return () => clearTimeout(timer);
  }, [text]);
  return text ? (
    <p class="notice" role="alert">
      {text}
    </p>
  ) : null;
}
