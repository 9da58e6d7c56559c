import type { JobAnswer } from "./ranks_types";

/** The job that the page lies beside: in the file itself, else from the server it came from. */
export async function fetchJob(page: Document): Promise<JobAnswer> {
  const data = page.getElementById("stepscope-job");
  if (data) {
    const job = JSON.parse(data.textContent ?? "") as JobAnswer;
    data.remove();
    return job;
  }
  const response = await fetch("/api/job").catch(() => null);
  if (!response) throw new Error("The server does not answer; start stepscope ranks again.");
  const answer = (await response.json()) as JobAnswer | { error: string };
  if ("error" in answer) throw new Error(answer.error);
  return answer;
}
