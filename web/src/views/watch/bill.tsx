import type { JSX } from "preact";
import type { Loss, RoleTime, UnusualSteps } from "../../api/watch_types";
import { grouped, percent, plural, significant, spoken } from "../../base/format";
import { keyOf, type WatchStore } from "../../state/watch";
import { ShareBar } from "../../widgets/bars";

/** Below this share of the run nothing is worth a row. */
const LEAST = 0.0005;
const MOST_ROWS = 12;
/** A role that waits less has no line where it waits. */
const NOTABLE = 0.02;

/** What the run lost time to; a row marks its steps. */
export function BillPanel({ store }: { store: WatchStore }): JSX.Element {
  const { losses, without_first, lines, slow, roles, limiting_role: limits } = store.answer.value;
  const notable = losses.filter((one) => one.share >= LEAST);
  return (
    <aside class="watch-bill" aria-label="Bill">
      <h2 class="pane-heading">
        Time lost <span class="dim">causes may overlap; a row marks its steps</span>
      </h2>
      {notable.length === 0 && <p class="dim">No measured cause took notable time.</p>}
      <ul class="watch-rows">
        {notable.map((one) => (
          <li key={`${one.cause} ${one.where}`}>
            <Loss store={store} loss={one} />
          </li>
        ))}
      </ul>
      {without_first && <p class="watch-without">{without_first}</p>}
      <Marked store={store} />
      {slow.length > 0 && (
        <>
          <h2 class="pane-heading">
            Slow steps <span class="dim">a row explains them</span>
          </h2>
          <ul class="watch-rows">
            {slow.slice(0, MOST_ROWS).map((one) => (
              <li key={keyOf(one)}>
                <Slow store={store} slow={one} />
              </li>
            ))}
          </ul>
          {slow.length > MOST_ROWS && (
            <p class="dim">and {grouped(slow.length - MOST_ROWS)} more, which lost less</p>
          )}
        </>
      )}
      {roles.length > 0 && (
        <>
          <h2 class="pane-heading">
            Processes <span class="dim">by samples{limits && `; ${limits} limits the run`}</span>
          </h2>
          <ul class="watch-rows">
            {roles.map((one) => (
              <li key={one.role} class="watch-row">
                <Role role={one} />
              </li>
            ))}
          </ul>
        </>
      )}
      {lines.length > 0 && (
        <>
          <h2 class="pane-heading">
            Lines <span class="dim">of the training thread, by samples</span>
          </h2>
          <ul class="watch-rows">
            {lines.slice(0, MOST_ROWS).map((one) => (
              <li key={one.where} class="watch-row">
                <RowText title={one.where} where="" lost={one.lost_s} share={one.share} />
              </li>
            ))}
          </ul>
        </>
      )}
    </aside>
  );
}

function Loss({ store, loss }: { store: WatchStore; loss: Loss }): JSX.Element {
  const { mark } = store.view.value;
  const field = store.answer.value.fields[loss.cause] ?? "";
  const text = (
    <RowText title={loss.cause} where={loss.where} lost={loss.lost_s} share={loss.share} />
  );
  if (!store.steps.has(field)) return <div class="watch-row">{text}</div>;
  return (
    <button
      type="button"
      class="watch-row"
      aria-pressed={mark === field}
      onClick={() => store.set({ mark: mark === field ? "" : field })}
    >
      {text}
    </button>
  );
}

function Role({ role }: { role: RoleTime }): JSX.Element {
  const where = [
    role.waits >= NOTABLE && role.waits_at && `waits most at ${role.waits_at}`,
    role.works_at && `works most at ${role.works_at}`,
  ];
  return (
    <>
      <span class="watch-cause">
        {role.role}
        {role.processes > 1 && ` × ${role.processes}`}
      </span>
      <span class="number">waits</span>
      <span class="number">{percent(role.waits)}</span>
      <ShareBar share={role.waits} />
      <span class="dim watch-where">{where.filter(Boolean).join(" · ")}</span>
    </>
  );
}

function Slow({ store, slow }: { store: WatchStore; slow: UnusualSteps }): JSX.Element {
  const steps =
    slow.count > 1
      ? `steps ${grouped(slow.first)} to ${grouped(slow.last)}`
      : `step ${grouped(slow.first)}`;
  const some = slow.count < slow.last - slow.first + 1 ? `, ${grouped(slow.count)} of them` : "";
  return (
    <button
      type="button"
      class="watch-row"
      aria-pressed={store.slow.value === slow}
      onClick={() => store.explain(slow)}
    >
      <span class="watch-cause">{slow.cause}</span>
      <span class="number">{spoken(slow.lost_s)}</span>
      <span class="number">{significant(slow.ratio)}×</span>
      <span class="dim watch-where">
        {steps}
        {some}
        {slow.where && ` · ${slow.where}`}
      </span>
    </button>
  );
}

function RowText(props: {
  title: string;
  where: string;
  lost: number;
  share: number;
}): JSX.Element {
  return (
    <>
      <span class="watch-cause">{props.title}</span>
      <span class="number">{spoken(props.lost)}</span>
      <span class="number">{percent(props.share)}</span>
      <ShareBar share={props.share} />
      {props.where && <span class="dim watch-where">{props.where}</span>}
    </>
  );
}

/** How many steps are marked, and the way from one to the next. */
function Marked({ store }: { store: WatchStore }): JSX.Element | null {
  const { mark } = store.view.value;
  const { steps } = store;
  void store.version.value;
  if (!mark) return null;
  let count = 0;
  for (let place = 0; place < steps.length; place++) if (steps.isMarked(mark, place)) count++;
  return (
    <p class="watch-marked">
      {plural(count, "step")} marked{" "}
      <button type="button" aria-label="Previous marked step" onClick={() => store.walkMarked(-1)}>
        ‹
      </button>
      <button type="button" aria-label="Next marked step" onClick={() => store.walkMarked(1)}>
        ›
      </button>
      <button type="button" onClick={() => store.set({ mark: "" })}>
        Unmark
      </button>
    </p>
  );
}
