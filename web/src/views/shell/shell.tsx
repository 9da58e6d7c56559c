import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import type { Overview } from "../../api/types";
import type { Store } from "../../state/store";
import { ErrorLine } from "../../widgets/answer";
import { Splitter } from "../../widgets/splitter";
import { Tabs } from "../../widgets/tabs";
import { panesOf } from "../index";
import { Warnings } from "../overview";
import { hasSide, Side } from "../side";
import { Timeline } from "../timeline/timeline";
import { Header } from "./header";
import { FirstFinding, Headline } from "./headline";
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
  return (
    <div class="shell">
      <Header store={store} />
      <Body store={store} />
      <Foot store={store} />
      <Help store={store} />
      <Notice store={store} />
    </div>
  );
}

function Body({ store }: { store: Store }): JSX.Element {
  const { value, error } = store.overview.value;
  if (error)
    return (
      <main class="alone">
        <ErrorLine text={error} />
      </main>
    );
  if (value && store.stepless.value) return <WithoutSteps store={store} value={value} />;
  return (
    <main class={`main ${hasSide(store) ? "with-side" : ""}`}>
      <Left store={store} />
      {hasSide(store) && <Side store={store} />}
    </main>
  );
}

/** Contexts of a whole run, or a memory snapshot, have no timeline: what there is fills the page. */
function WithoutSteps({ store, value }: { store: Store; value: Overview }): JSX.Element {
  return (
    <main class="alone">
      {value.has.contexts || value.has.memory ? (
        <>
          <p class="alone-line">
            {value.has.contexts ? (
              <>
                Calling contexts of a whole run, added up while it ran. No step was recorded on its
                own, so there is no timeline: <code>stepscope run</code> without{" "}
                <code>--contexts</code> records one.
              </>
            ) : (
              <>
                Memory alone, without steps: <code>stepscope run --memory</code> records both.
              </>
            )}
          </p>
          {value.has.contexts && (
            <section class="headline" aria-label="First finding">
              <FirstFinding store={store} />
            </section>
          )}
          <Warnings warnings={value.warnings} />
          <Dock store={store} />
        </>
      ) : (
        <ErrorLine text={value.why} />
      )}
    </main>
  );
}

function Left({ store }: { store: Store }): JSX.Element {
  const share = useSignal(0.58);
  const left = useRef<HTMLDivElement>(null);
  return (
    <div class="left" ref={left} style={{ "--timeline-share": `${share.value * 100}vh` }}>
      <Headline store={store} />
      <Timeline store={store} />
      <Splitter
        label="Height of the timeline"
        above={() => left.current!.querySelector(".stack, .level-tables")!}
        share={share.value}
        onMove={(to) => (share.value = to)}
      />
      <Dock store={store} />
    </div>
  );
}

/** The panes; another one comes fully into sight, which hits of a search do not while one types. */
function Dock({ store }: { store: Store }): JSX.Element {
  const panes = panesOf(store);
  const pane = panes.find((one) => one.id === store.view.value.pane) ?? panes[0]!;
  const dock = useRef<HTMLElement>(null);
  const shown = useRef(pane.id);
  const asked = store.paneAsked.value;
  useEffect(() => {
    const first = pane.id === shown.current && asked === 0;
    if (!first && pane.id !== "search") dock.current!.scrollIntoView({ block: "nearest" });
    shown.current = pane.id;
  }, [pane.id, asked]);
  return (
    <section class="dock" aria-label="Panes" ref={dock}>
      <Tabs tabs={panes} chosen={pane.id} panel="pane" onChoose={(id) => store.set({ pane: id })} />
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
