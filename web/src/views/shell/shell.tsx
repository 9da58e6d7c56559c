import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import type { Overview } from "../../api/types";
import { shellWord } from "../../base/format";
import type { Store } from "../../state/store";
import { ErrorLine } from "../../widgets/answer";
import { Splitter } from "../../widgets/splitter";
import { Tabs } from "../../widgets/tabs";
import { shownPane, tabsOf } from "../index";
import { Warnings } from "../overview";
import { hasSide, Side } from "../side";
import { Timeline } from "../timeline/timeline";
import { Header } from "./header";
import { FirstFinding, Headline } from "./headline";
import { Help } from "./help";
import { pressed } from "./keys";
import { Palette } from "./palette";
import { Waiting } from "./waiting";

const NOTICE_MS = 6000;

/** The whole page. */
export function Shell({ store }: { store: Store }): JSX.Element {
  useEffect(() => {
    const press = (event: KeyboardEvent): void => pressed(store, event);
    const dropped = (event: DragEvent): void => refuse(store, event);
    addEventListener("keydown", press);
    addEventListener("dragover", dropped);
    addEventListener("drop", dropped);
    return () => {
      removeEventListener("keydown", press);
      removeEventListener("dragover", dropped);
      removeEventListener("drop", dropped);
    };
  }, []);
  if (!store.client.value) return <Waiting store={store} />;
  return (
    <div class="shell">
      <Header store={store} />
      <Body store={store} />
      <Foot store={store} />
      <Help store={store} />
      <Palette store={store} />
      <Notice store={store} />
    </div>
  );
}

/** A file dropped here would replace the page in the browser; a page reads no files, but says who does. */
function refuse(store: Store, event: DragEvent): void {
  const { files, types } = event.dataTransfer ?? {};
  if (!types?.includes("Files")) return;
  event.preventDefault();
  if (event.type !== "drop" || !files?.length) return;
  const names = [store.entry.value?.name ?? "FILE", ...[...files].map((one) => one.name)];
  store.notice.value = `To see both, run: stepscope view ${names.map(shellWord).join(" ")}`;
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
  return <Workbench store={store} />;
}

/** At first the drawer takes this share of the window's height. */
const DRAWER = 0.4;

/** Three zones of fixed size: what bounds the step and the axis, the timeline, and the drawer. */
function Workbench({ store }: { store: Store }): JSX.Element {
  const share = useSignal(DRAWER);
  const drawer = useRef<HTMLDivElement>(null);
  return (
    <main class="main" style={{ "--drawer": `${share.value * 100}vh` }}>
      <Headline store={store} />
      <Timeline store={store} />
      <Splitter
        label="Height of the drawer"
        below={() => drawer.current!}
        share={share.value}
        usual={DRAWER}
        onMove={(to) => (share.value = to)}
      />
      <div class={`drawer ${hasSide(store) ? "with-side" : ""}`} ref={drawer}>
        <Dock store={store} />
        {hasSide(store) && <Side store={store} />}
      </div>
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
                This file has memory alone; <code>stepscope run --memory</code> records steps too.
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

/** The tabs of the drawer, and the section that is open. */
function Dock({ store }: { store: Store }): JSX.Element {
  const pane = shownPane(store);
  return (
    <section class="dock" aria-label="Panes">
      <Tabs
        tabs={tabsOf(store)}
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
