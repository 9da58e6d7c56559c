import type { JSX } from "preact";
import { titleOf } from "../../base/sentences";
import type { Store } from "../../state/store";
import { findingsOf, gainText, showFinding, tryChanges } from "../findings";

const SHOW_EVENT = "Mark its evidence and go to the longest";
const SHOW_PLACE = "Show the line, or its boxes in the flame graph";

/** What bounds the step, and the finding that would gain most: where it is, and to try it. */
export function Headline({ store }: { store: Store }): JSX.Element | null {
  const { facts, job } = store.facts.value.value ?? {};
  if (!facts) return null;
  return (
    <section class="headline" aria-label="Verdict">
      <Verdict sentence={facts.verdict.sentence} job={job?.sentences[0]} />
      {store.levels.value.value && <FirstFinding store={store} />}
    </section>
  );
}

/** Which rank of a job is slow, or else what bounds the step, in few words; all of both on hover. */
function Verdict(props: { sentence: string; job: string | undefined }): JSX.Element {
  const { sentence, job } = props;
  const title = titleOf(job ?? sentence);
  const first = title.slice(0, (job ? 0 : title.indexOf(": ") + 1) || undefined);
  return (
    <p class="verdict" title={[job, sentence].filter(Boolean).join(" ")}>
      {first}
      <span class="dim">{title.slice(first.length)}</span>
    </p>
  );
}

export function FirstFinding({ store }: { store: Store }): JSX.Element | null {
  const { value, loading } = findingsOf(store).value;
  const first = value?.findings[0];
  if (!value) return loading ? <p class="dim first-finding">Looking for findings…</p> : null;
  if (!first) return <p class="dim first-finding">{value.nothing}</p>;
  const more = value.findings.length - 1;
  return (
    <p class={`first-finding severity-${first.severity}`}>
      <span title={first.what}>
        <span class="severity">{first.severity}</span> {titleOf(first.what)}
      </span>
      {first.gain_ms > 0 && (
        <b class="gain" title={`could save ${gainText(value, first)}`}>
          could save {gainText(value, first)}
        </b>
      )}
      <span class="headline-actions">
        <button
          type="button"
          onClick={() => showFinding(store, first)}
          title={store.stepless.value ? SHOW_PLACE : SHOW_EVENT}
        >
          Show me
        </button>
        {first.changes.length > 0 && (
          <button
            type="button"
            title={first.changes.join(" ")}
            onClick={() => tryChanges(store, first.changes)}
          >
            Try it
          </button>
        )}
        {more > 0 && (
          <button type="button" class="link" onClick={() => store.set({ pane: "findings" })}>
            {more} more
          </button>
        )}
      </span>
    </p>
  );
}
