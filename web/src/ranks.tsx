import { render } from "preact";
import { startPage } from "./base/start";
import { fetchJob } from "./api/job";
import { JobStore } from "./state/job";
import { followTheme } from "./state/theme";
import { JobPage } from "./views/ranks/page";
import "./styles/ranks.css";

async function start(root: HTMLElement): Promise<void> {
  followTheme();
  const store = new JobStore(await fetchJob(document));
  document.title = `${store.job.name} · stepscope`;
  root.replaceChildren();
  render(<JobPage store={store} />, root);
}

startPage(start);
