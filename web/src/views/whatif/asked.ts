import { computed, signal, type ReadonlySignal, type Signal } from "@preact/signals";
import { perStore } from "../../state/per_store";

/** Of several ranks, the one on screen alone, not all together. */
export const aloneOf = perStore((): Signal<boolean> => signal(false));

interface Asked {
  rank: number | undefined;
  step: number | undefined;
}

export const askedOf = perStore((store): ReadonlySignal<Asked | null> =>
  computed(() => {
    const scope = store.scope.value;
    return scope && { rank: aloneOf(store).value ? scope.rank : undefined, step: scope.step };
  }),
);
