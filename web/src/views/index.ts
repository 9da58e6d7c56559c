import type { Store } from "../state/store";
import { collectives } from "./collectives";
import { compare, othersOf } from "./compare";
import { findings } from "./findings";
import { flame } from "./flame";
import { kernels } from "./kernels/pane";
import { memory } from "./memory/pane";
import { modules } from "./modules";
import { notes, notesOf } from "./notes";
import { overview } from "./overview";
import type { Pane } from "./pane";
import { query } from "./query";
import { search } from "./search";
import { source } from "./source";
import { whatif } from "./whatif/pane";

/** The panes below the timeline, by their order on screen. */
const PANES: Pane[] = [overview, findings, whatif, flame, modules, kernels, source];

/** The same for steps without a device, whose work is that of operators. */
const PANES_WITHOUT_DEVICE = PANES.map((one) =>
  one === kernels ? { ...one, title: "Operators", hint: "Operators by name" } : one,
);

/** Those that tell something of collected contexts without steps. */
const PANES_OF_CONTEXTS: Pane[] = [flame, findings, source];

/** The panes that are shown: the first nine have the keys 1 to 9. */
export function panesOf(store: Store): Pane[] {
  const { has } = store.overview.value.value ?? {};
  const recorded = has?.memory ? [memory] : [];
  if (store.stepless.value)
    return has?.contexts ? [...PANES_OF_CONTEXTS, ...recorded, query] : [...recorded, query];
  const work = store.overview.value.value?.facts?.kernels_are;
  const panes = work === "operators" ? PANES_WITHOUT_DEVICE : PANES;
  const communicates = has?.communication ? [collectives] : [];
  // A file says what to run where it has nothing to compare; a server is started with both traces.
  const compared = othersOf(store).length || !store.host.live ? [compare] : [];
  const searched = store.view.value.text ? [search] : [];
  const noted = notesOf(store).length ? [notes] : [];
  return [...panes, ...communicates, ...recorded, ...compared, query, ...searched, ...noted];
}
