import type { JSX } from "preact";
import type { Store } from "../state/store";
import { AreaPane } from "./area";
import { DetailsPane } from "./details";

/** Whether anything is chosen, so that there is something to say at the side. */
export function hasSide(store: Store): boolean {
  const { area, chosen } = store.view.value;
  const { value, error } = store.levels.value;
  return area !== null || (chosen !== "" && !(error && !value));
}

/** What is chosen, or the statistics of the area that somebody dragged over. */
export function Side({ store }: { store: Store }): JSX.Element {
  const { area } = store.view.value;
  return (
    <aside
      class="details"
      aria-label={area ? "Statistics" : "Details"}
      aria-busy={!area && store.details.value.loading}
      data-path={area ? undefined : store.details.value.value?.path}
      tabIndex={0}
    >
      <button
        type="button"
        class="icon close"
        aria-label="Close"
        title="Close"
        onClick={() => store.set(area ? { area: null } : { chosen: "", subject: null })}
      >
        ×
      </button>
      {area ? <AreaPane store={store} /> : <DetailsPane store={store} />}
    </aside>
  );
}
