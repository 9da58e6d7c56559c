import type { JSX } from "preact";
import type { BatchProfile, PanelPrediction as Prediction } from "../../api/batch_types";
import { bytes, milliseconds, percent, plural, significant, words } from "../../base/format";
import type { BatchStore } from "../../state/batch";
import { BreakdownView, KINDS } from "./breakdown";
import { Charts } from "./chart";
import { Devices } from "./devices";
import { Sliders } from "./sliders";

/** The page about batch sizes: beside a file in an editor, or by itself. */
export function BatchPanel({ store }: { store: BatchStore }): JSX.Element {
  const profile = store.profile.value;
  const chosen = store.chosen.value;
  return (
    <main class="batch" aria-label="Batch size">
      {store.problem.value && (
        <p class="batch-problem" role="alert">
          {store.problem.value}
        </p>
      )}
      {profile ? (
        <Whole store={store} profile={profile} chosen={chosen} />
      ) : (
        !store.problem.value && <p class="nothing">Not measured yet.</p>
      )}
    </main>
  );
}

function Whole(props: {
  store: BatchStore;
  profile: BatchProfile;
  chosen: Prediction | null;
}): JSX.Element {
  const { store } = props;
  return (
    <>
      <Head {...props} />
      {store.devices.known && <Tabs store={store} />}
      {store.tab.value === "devices" ? (
        <Devices store={store.devices} asks={store.host.edits} />
      ) : (
        <BatchSizes {...props} />
      )}
    </>
  );
}

const TABS = { batch: "Batch size", devices: "Other devices" } as const;

function Tabs({ store }: { store: BatchStore }): JSX.Element {
  return (
    <div class="tabs" role="group" aria-label="What is shown">
      {(["batch", "devices"] as const).map((tab) => (
        <button
          key={tab}
          type="button"
          aria-pressed={store.tab.value === tab}
          onClick={() => store.open(tab)}
        >
          {TABS[tab]}
        </button>
      ))}
    </div>
  );
}

function BatchSizes(props: {
  store: BatchStore;
  profile: BatchProfile;
  chosen: Prediction | null;
}): JSX.Element {
  const { store, profile, chosen } = props;
  return (
    <>
      {chosen ? (
        <Choices store={store} profile={profile} chosen={chosen} />
      ) : (
        <p class="nothing">
          Other batch sizes are not predicted: {plural(profile.points.length, "size")} measured.
        </p>
      )}
      <BreakdownView store={store} />
      {profile.warnings.length > 0 && (
        <section class="batch-warnings" aria-label="Warnings">
          <h2 class="pane-heading">Warnings</h2>
          <ul>
            {profile.warnings.map((one) => (
              <li key={one}>{one}</li>
            ))}
          </ul>
        </section>
      )}
    </>
  );
}

/** What needs a model of run time: the two bars, sizes to try, and the charts. */
function Choices(props: {
  store: BatchStore;
  profile: BatchProfile;
  chosen: Prediction;
}): JSX.Element {
  const { chosen } = props;
  return (
    <>
      <Sliders {...props} />
      {chosen.memory && <Legend memory={chosen.memory} />}
      <Suggestions {...props} />
      <Charts {...props} />
    </>
  );
}

function Head({
  store,
  profile,
  chosen,
}: {
  store: BatchStore;
  profile: BatchProfile;
  chosen: Prediction | null;
}): JSX.Element {
  const { site } = profile;
  const size = chosen?.batch ?? profile.batch;
  const ms = chosen?.ms ?? profile.points.find((one) => one.batch === size)?.ms;
  const place = `${site.path.split("/").pop()}:${site.line}`;
  const error = profile.fit_error;
  return (
    <header class="batch-head">
      <h1>
        Batch size <output class="batch-size">{size}</output>
        {size !== profile.batch && <span class="dim"> was {profile.batch}</span>}
      </h1>
      <p class="dim">
        {site.name} at{" "}
        {store.host.edits ? (
          <button
            type="button"
            class="link"
            onClick={() => store.host.reveal(site.path, site.line)}
          >
            {place}
          </button>
        ) : (
          place
        )}
        {ms !== undefined && ` · a step takes ${milliseconds(ms)}`}
        {error !== null && ` · error at a held-out size: ${percent(error)}`}
      </p>
    </header>
  );
}

function Legend({ memory }: { memory: Record<string, number> }): JSX.Element {
  const kinds = KINDS.filter((kind) => (memory[kind] ?? 0) > 0);
  return (
    <ul class="memory-legend">
      {kinds.map((kind) => (
        <li key={kind}>
          <span class={`swatch c-memory-${kind}`} aria-hidden="true" /> {words(kind)}{" "}
          <span class="number">{bytes(memory[kind]!)}</span>
        </li>
      ))}
    </ul>
  );
}

function Suggestions({
  store,
  profile,
  chosen,
}: {
  store: BatchStore;
  profile: BatchProfile;
  chosen: Prediction;
}): JSX.Element {
  const offers = [profile.now, ...profile.suggestions].filter((one) => one !== null);
  return (
    <div class="suggestions" role="group" aria-label="Batch sizes to try">
      <span class="dim">Try</span>
      {offers.map((one) => (
        <button
          key={one.batch}
          type="button"
          aria-pressed={one.batch === chosen.batch}
          onClick={() => store.choose(one)}
        >
          <strong>{one.batch}</strong>: {significant(one.throughput)} samples/s
          {one.bytes !== undefined && `, ${bytes(one.bytes)}`}
        </button>
      ))}
    </div>
  );
}
