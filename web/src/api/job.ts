import { readElement } from "./element";
import { fetchJson } from "./http";
import type { JobAnswer } from "./ranks_types";

const ELEMENT = "stepscope-job";

/** The job of this page: in the file itself, else of the server that the page came from. */
export async function fetchJob(page: Document): Promise<JobAnswer> {
  const job = readElement<JobAnswer>(page, ELEMENT);
  page.getElementById(ELEMENT)?.remove(); // megabytes of text that nobody reads again
  return job ?? ((await fetchJson("/api/job")) as JobAnswer);
}
