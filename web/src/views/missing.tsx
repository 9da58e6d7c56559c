import type { ComponentChildren, JSX } from "preact";
import type { Store } from "../state/store";
import { othersOf } from "../state/pair";
import type { Pane } from "./pane";

/** A section that this file does not have, and how to get it. */
interface Absent {
  id: string;
  title: string;
  how: ComponentChildren;
}

/** What is folded away instead of shown as empty panes. */
export function absentOf(store: Store): Absent[] {
  const { has } = store.overview.value.value ?? {};
  const [live, steps] = [store.host.live, !store.stepless.value];
  if (!has) return [];
  const rows: [boolean, Absent][] = [
    [!live && !store.host.whatIfs.length && steps, whatIf(store)],
    [!live && !othersOf(store).length && steps, COMPARE],
    [!has.modules && steps, MODULES],
    [!has.source && steps, SOURCE],
    [!live, SQL],
  ];
  return rows.filter(([absent]) => absent).map(([, what]) => what);
}

function whatIf(store: Store): Absent {
  const changes = store.view.value.changes.join(" ") || "CHANGE…";
  return {
    id: "whatif",
    title: "What-if",
    how: (
      <>
        This file holds no what-ifs. Open the trace with <code>stepscope view FILE</code>, ask with{" "}
        <code>stepscope whatif FILE {changes}</code>, or include them:{" "}
        <code>stepscope report FILE --html OUT --whatif "{changes}"</code>.
      </>
    ),
  };
}

const COMPARE: Absent = {
  id: "compare",
  title: "Compare",
  how: (
    <>
      This file holds one rank of one trace, so there is nothing to compare here.{" "}
      <code>stepscope report B --html OUT --compare A</code> writes a file with what changed from A
      to B; <code>stepscope view A B</code> shows it, and <code>stepscope diff A B</code> prints it.
    </>
  ),
};

const MODULES: Absent = {
  id: "modules",
  title: "Model",
  how: (
    <>
      This trace has no modules. Record with <code>stepscope run</code>, or give the model's tree:{" "}
      <code>--model model.json</code>.
    </>
  ),
};

const SOURCE: Absent = {
  id: "source",
  title: "Source",
  how: (
    <>
      This trace names no source lines. <code>stepscope run</code> records where modules are called.
    </>
  ),
};

const SQL: Absent = {
  id: "sql",
  title: "SQL",
  how: (
    <>
      SQL needs the live page: run <code>stepscope view FILE</code>, or{" "}
      <code>stepscope query FILE "SQL"</code>.
    </>
  ),
};

export const missing: Pane = {
  id: "missing",
  title: "Not in this file",
  hint: "What this file does not have, and how to get it",
  View: ({ store }) => (
    <dl class="missing">
      {absentOf(store).map(({ id, title, how }): JSX.Element => (
        <div key={id} data-missing={id}>
          <dt>{title}</dt>
          <dd>{how}</dd>
        </div>
      ))}
    </dl>
  ),
};
