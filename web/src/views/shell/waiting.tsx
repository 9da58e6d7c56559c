import type { JSX } from "preact";
import type { TraceEntry } from "../../api/types";
import { percent } from "../../base/format";
import type { Store } from "../../state/store";
import { ErrorLine } from "../../widgets/answer";

/** What is shown until a trace can be: how far it is read, or why it cannot be. */
export function Waiting({ store }: { store: Store }): JSX.Element {
  const { failure, traces, entry, view } = store;
  if (failure.value)
    return (
      <Page title="No connection">
        <ErrorLine text={failure.value} />
      </Page>
    );
  if (!traces.value)
    return (
      <Page title="stepscope">
        <p class="dim">Loading…</p>
      </Page>
    );
  const now = entry.value;
  if (!now || now.state === "compared") return <Unknown store={store} id={view.value.trace} />;
  if (now.state === "failed") {
    return (
      <Page title={now.name}>
        <ErrorLine text={now.message} />
        <Others store={store} id={now.id} />
      </Page>
    );
  }
  return (
    <Page title={`Reading ${now.name}`}>
      <Progress entry={now} />
      <Others store={store} id={now.id} />
    </Page>
  );
}

function Progress({ entry }: { entry: TraceEntry }): JSX.Element {
  return (
    <>
      <progress value={entry.progress} max={1} aria-label={`Reading ${entry.name}`} />
      <p class="dim">
        {percent(entry.progress)} {entry.message}
      </p>
    </>
  );
}

function Unknown({ store, id }: { store: Store; id: string }): JSX.Element {
  return (
    <Page title="Not open">
      <ErrorLine text={id ? `No trace named ${id} is open here.` : "No trace is open here."} />
      <Others store={store} id={id} />
    </Page>
  );
}

/** The other traces that are read, to go on with. */
function Others({ store, id }: { store: Store; id: string }): JSX.Element | null {
  const all = store.traces.value?.traces ?? [];
  const others = all.filter((one) => one.id !== id && one.state === "ready");
  if (!others.length) return null;
  return (
    <ul aria-label="Open here">
      <li class="dim">Open here:</li>
      {others.map((one) => (
        <li key={one.id}>
          <button type="button" class="link" onClick={() => store.openTrace(one.id)}>
            {one.name}
          </button>
        </li>
      ))}
    </ul>
  );
}

function Page(props: {
  title: string;
  children: JSX.Element | (JSX.Element | null)[];
}): JSX.Element {
  return (
    <main class="waiting">
      <h1>{props.title}</h1>
      {props.children}
    </main>
  );
}
