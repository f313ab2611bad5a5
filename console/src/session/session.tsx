import { createContext, useContext } from "react";
import type { IdentityDocument } from "../api/documents";

const IdentityContext = createContext<IdentityDocument | null>(null);

export const IdentityProvider = IdentityContext.Provider;

/** Who is signed in. */
export function useSignedIn(): IdentityDocument {
  const identity = useContext(IdentityContext);
  if (identity === null) throw new Error("This component is shown to signed-in users only.");
  return identity;
}

/** A function that tells whether the signed-in user has a permission. */
export function usePermissions(): (permission: string) => boolean {
  const { permissions } = useSignedIn();
  return (permission) => permissions.includes(permission);
}

/** The token in the fragment of a sign-in link. It is removed from the address and from the history. */
export function takeLinkToken(): string | null {
  const token = new URLSearchParams(window.location.hash.slice(1)).get("token");
  if (token !== null) window.history.replaceState(null, "", window.location.pathname + window.location.search);
  return token;
}
