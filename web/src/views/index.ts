import type { Store } from "../state/store";
import { collectives } from "./collectives";
import { othersOf } from "../state/pair";
import { compare } from "./compare";
import { findings } from "./findings";
import { flame } from "./flame";
import { kernels } from "./kernels/pane";
import { memory } from "./memory/pane";
import { absentOf, missing } from "./missing";
import { modules } from "./modules";
import { notes, notesOf } from "./notes";
import { overview } from "./overview";
import type { Pane } from "./pane";
import { query } from "./query";
import { search } from "./search";
import { source } from "./source";
import { whatif } from "./whatif/pane";

/** The same for steps without a device, whose work is that of operators. */
const OPERATORS: Pane = { ...kernels, title: "Operators", hint: "Operators by name" };

/**
 * The five tabs of the drawer, each with its sections; the first section is the tab itself.
 *
 * What the file does not have is left out: `missing` says what, and how to get it.
 */
export function tabsOf(store: Store): Pane[][] {
  const { has, facts } = store.overview.value.value ?? {};
  const absent = new Set(absentOf(store).map((one) => one.id));
  const there = (panes: Pane[]): Pane[] => panes.filter((one) => !absent.has(one.id));
  if (store.stepless.value) {
    const tabs = has?.contexts ? [[flame, source], [findings]] : [];
    return [...tabs, has?.memory ? [memory] : [], there([query])].filter((one) => one.length);
  }
  const first = [
    ...[findings, overview, whatif],
    ...(othersOf(store).length ? [compare] : []),
    ...(has?.communication ? [collectives] : []),
    ...(store.view.value.text ? [search] : []),
    ...(notesOf(store).length ? [notes] : []),
  ];
  const work = facts?.kernels_are === "operators" ? OPERATORS : kernels;
  const tabs = [first, [modules, work], [flame, source], has?.memory ? [memory] : [], [query]];
  return [...tabs.map(there), absent.size ? [missing] : []].filter((one) => one.length);
}

/** Every section that is there, by its order on screen. */
export function panesOf(store: Store): Pane[] {
  return tabsOf(store).flat();
}

/** The section that is shown: the one asked for, or why the file does not have it, or the overview. */
export function shownPane(store: Store): Pane {
  const { pane } = store.view.value;
  const panes = panesOf(store);
  const asked = panes.find((one) => one.id === pane);
  const absent = absentOf(store).some((one) => one.id === pane);
  const usual = panes.find((one) => one === overview) ?? panes[0]!;
  return asked ?? (absent ? missing : usual);
}
