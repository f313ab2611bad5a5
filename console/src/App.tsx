import { QueryClientProvider, useQueryClient } from "@tanstack/react-query";
import { RefreshCw, SearchX, Unplug } from "lucide-react";
import { lazy, type ReactNode, Suspense, useCallback, useEffect, useRef, useState } from "react";
import { ActionHost } from "./actions/ActionHost";
import { setCsrfToken, whenSignedOut, write } from "./api/client";
import type { IdentityDocument } from "./api/documents";
import { Problem } from "./api/problem";
import { useIdentity } from "./api/queries";
import { makeQueryClient } from "./api/queryClient";
import { Announcements } from "./elements/announcements";
import { Dialog } from "./elements/Dialog";
import { Empty, Failure, Loading } from "./elements/states";
import { LiveUpdates, useFeedState } from "./live/LiveUpdates";
import { matchPath, usePlace } from "./navigation/location";
import { PAGES } from "./navigation/pages";
import { Sidebar } from "./navigation/Sidebar";
import { ShortcutList, useShortcuts } from "./navigation/shortcuts";
import { useCounts } from "./navigation/useCounts";
import { DeadLettersPage } from "./pages/DeadLettersPage";
import { ExecutionsPage } from "./pages/ExecutionsPage";
import { OverviewPage } from "./pages/OverviewPage";
import { ReviewsPage } from "./pages/ReviewsPage";
import { VERSION } from "./place";
import { openSession, SignInForm, SignInPage, signInProblem } from "./session/SignIn";
import { IdentityProvider, usePermissions } from "./session/session";

// The graph and the timeline are large and needed on one page only.
const ExecutionPage = lazy(() => import("./execution/ExecutionPage"));

const client = makeQueryClient();

/** The console. `linkToken` is that of the sign-in link that opened it. */
export function App({ linkToken }: { linkToken: string | null }) {
  return (
    <QueryClientProvider client={client}>
      <Announcements />
      <Session linkToken={linkToken} />
    </QueryClientProvider>
  );
}

function Session({ linkToken }: { linkToken: string | null }) {
  const { notice, isOpening } = useLink(linkToken);
  if (isOpening) return <Blank />;
  return <SessionOfCookie notice={notice} />;
}

/** Signs in with the token of a link, once. */
function useLink(token: string | null): { notice: string; isOpening: boolean } {
  const [isOpening, setIsOpening] = useState(token !== null);
  const [notice, setNotice] = useState("");
  const isSent = useRef(false);
  useEffect(() => {
    if (token === null || isSent.current) return;
    isSent.current = true;
    openSession({ token })
      .catch((error: unknown) => setNotice(signInProblem(error)))
      .finally(() => setIsOpening(false));
  }, [token]);
  return { notice, isOpening };
}

function SessionOfCookie({ notice }: { notice: string }) {
  const queries = useQueryClient();
  const [known, setKnown] = useState<IdentityDocument | null>(null);
  const [isExpired, setIsExpired] = useState(false);
  const identity = useIdentity();
  const expire = useCallback(() => setIsExpired(true), []);
  useEffect(() => whenSignedOut(expire), [expire]);
  useEffect(() => {
    if (!identity.data) return;
    setCsrfToken(identity.data.csrf_token);
    setKnown(identity.data);
  }, [identity.data]);

  const signedIn = (next: IdentityDocument) => {
    setCsrfToken(next.csrf_token);
    const isSame = known?.actor === next.actor && known?.tenant === next.tenant;
    if (!isSame) queries.clear(); // another person sees nothing of what the previous one saw
    queries.setQueryData(["me"], next);
    setKnown(next);
    setIsExpired(false);
    if (isSame) void queries.invalidateQueries();
  };
  const signOut = async () => {
    await write("DELETE", "/v1/session").catch(() => undefined);
    window.location.reload();
  };

  if (known === null) {
    const { error } = identity;
    if (error instanceof Problem && error.status === 401) return <SignInPage onSignedIn={signedIn} notice={notice} />;
    if (error) return <Failure isPage error={error} onRetry={() => void identity.refetch()} />;
    return <Blank />;
  }
  return (
    <IdentityProvider value={known}>
      <LiveUpdates onSignedOut={expire}>
        <Shell onSignOut={signOut} />
      </LiveUpdates>
      {isExpired && <Expired onSignedIn={signedIn} onLeave={() => window.location.reload()} />}
    </IdentityProvider>
  );
}

function Blank() {
  return <main className="sign-in-page" aria-busy="true" />;
}

/** Shown over the open page, which keeps what was entered there. */
function Expired({ onSignedIn, onLeave }: { onSignedIn: (next: IdentityDocument) => void; onLeave: () => void }) {
  return (
    <Dialog title="Sign in again" onClose={onLeave}>
      <div className="dialog-body">
        <p className="secondary">Your session has ended. What you entered on the page is kept.</p>
        <SignInForm onSignedIn={onSignedIn} />
      </div>
    </Dialog>
  );
}

function Shell({ onSignOut }: { onSignOut: () => void }) {
  const [shortcuts, setShortcuts] = useState(false);
  useShortcuts(() => setShortcuts(true));
  return (
    <ActionHost>
      <a className="skip-link" href="#content">
        Skip to the content
      </a>
      <div className="shell">
        <Sidebar counts={useCounts()} onShortcuts={() => setShortcuts(true)} onSignOut={onSignOut} />
        <main id="content" tabIndex={-1}>
          <Notices />
          <Suspense fallback={<Loading what="the page" />}>
            <CurrentPage />
          </Suspense>
        </main>
      </div>
      {shortcuts && <ShortcutList onClose={() => setShortcuts(false)} />}
    </ActionHost>
  );
}

function CurrentPage() {
  const { path } = usePlace();
  const may = usePermissions();
  const execution = matchPath("/executions/{id}", path);
  const page = execution ? PAGES[1] : PAGES.find((each) => matchPath(each.path, path));
  const title = execution
    ? `Execution ${execution["id"]}`
    : page
      ? [page.title, page.rest].filter(Boolean).join(" ")
      : "Not found";
  useEffect(() => {
    document.title = `${title} · Tenuto`;
  }, [title]);
  if (!page) return <UnknownPage />;
  if (!may(page.permission)) return <Forbidden permission={page.permission} />;
  if (execution) return <ExecutionPage key={execution["id"]} id={execution["id"] ?? ""} />;
  return PAGE_CONTENTS[page.path];
}

const PAGE_CONTENTS: Record<string, ReactNode> = {
  "/": <OverviewPage />,
  "/executions": <ExecutionsPage />,
  "/reviews": <ReviewsPage />,
  "/dead-letters": <DeadLettersPage />,
};

function UnknownPage() {
  return (
    <Empty isPage icon={SearchX} title="There is no such page" link={{ to: "/", text: "Go to the overview" }}>
      The link may be wrong, or the page may be part of another version.
    </Empty>
  );
}

function Forbidden({ permission }: { permission: string }) {
  const document = {
    type: "about:blank",
    title: "Forbidden",
    status: 403,
    code: "not_permitted",
    detail: `This page needs the permission ${permission}. An administrator can give you a role that has it.`,
  };
  return <Failure isPage error={new Problem(document)} />;
}

/** What concerns every page: a lost connection, and an upgrade of the service. */
function Notices() {
  const { data } = useIdentity();
  const [isBroken, setIsBroken] = useState(false);
  const isLost = useIsLost();
  useEffect(() => {
    const onBroken = () => setIsBroken(true); // a part of this page is gone: the service has another build
    window.addEventListener("vite:preloadError", onBroken);
    return () => window.removeEventListener("vite:preloadError", onBroken);
  }, []);
  const isOld = isBroken || (data !== undefined && VERSION !== "" && data.version !== VERSION);
  return (
    <div role="status">
      {isLost && (
        <div className="notice">
          <Unplug size={16} aria-hidden="true" />
          <span>Connection lost. What you see may be out of date; the console keeps trying.</span>
        </div>
      )}
      {isOld && (
        <div className="notice">
          <RefreshCw size={16} aria-hidden="true" />
          <span>The service was upgraded{data && data.version !== VERSION ? ` to ${data.version}` : ""}.</span>
          <button type="button" className="button small" onClick={() => window.location.reload()}>
            Reload
          </button>
        </div>
      )}
    </div>
  );
}

/** A connection that is lost for two seconds: a restart of the service is shorter. */
function useIsLost(): boolean {
  const state = useFeedState();
  const [isLost, setIsLost] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setIsLost(state === "lost"), state === "lost" ? 2_000 : 0);
    return () => clearTimeout(timer);
  }, [state]);
  return isLost;
}
