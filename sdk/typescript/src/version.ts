/** The version of this package. */
export const version = "0.0.0-dev.0";
