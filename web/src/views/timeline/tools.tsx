import type { JSX } from "preact";
import { prefixes } from "../../base/path";
import type { Store } from "../../state/store";
import { RawEvents } from "../raw_events";

/** The way to the lowest level, and what can be done with the timeline. */
export function TimelineTools({ store }: { store: Store }): JSX.Element {
  const view = store.view.value;
  const device = store.overview.value.value?.has.device ?? false;
  return (
    <div class="timeline-tools">
      <Way store={store} />
      <span class="grow" />
      <span class="tool-group">
        <button
          type="button"
          title="Open the longest operation again and again, down to a single one (c)"
          onClick={() => void store.descend("cpu")}
        >
          Slowest CPU ↓
        </button>
        {device && (
          <button
            type="button"
            title="The same by time on the device (g)"
            onClick={() => void store.descend("device")}
          >
            Slowest GPU ↓
          </button>
        )}
      </span>
      <label
        class="switch"
        title="All threads, streams and ranks, not only the longest of each kind (a)"
      >
        <input
          type="checkbox"
          checked={view.every}
          onChange={(event) => store.set({ every: event.currentTarget.checked })}
        />
        All threads and ranks
      </label>
      <button
        type="button"
        aria-pressed={view.asTable}
        title="The same as a table (t)"
        onClick={() => store.set({ asTable: !view.asTable })}
      >
        Table
      </button>
      <RawEvents store={store} path={view.chosen || (view.path ?? "")} />
    </div>
  );
}

/** trace › step 5 › forward: each opens its level again. */
function Way({ store }: { store: Store }): JSX.Element {
  const levels = store.levels.value.value ?? [];
  const paths = prefixes(levels.at(-1)?.path ?? "");
  return (
    <nav aria-label="Path" class="way">
      {paths.map((path, depth) => {
        const level = levels[depth];
        return (
          <button
            key={path}
            type="button"
            class="link"
            aria-current={depth === paths.length - 1 ? "page" : undefined}
            title={level?.wire.name}
            onClick={() => store.open(path)}
          >
            {level?.wire.name || "trace"}
          </button>
        );
      })}
    </nav>
  );
}
